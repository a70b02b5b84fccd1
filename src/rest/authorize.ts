/** Decides which operations a caller may carry out, by what the contract says that each needs. */
import type { RequestHandler } from 'express';
import type { Principal } from '../auth/principal.ts';
import { type GivenRight, type Held, refusalOf, rightsOf } from '../auth/rights.ts';
import { AppError } from '../base/errors.ts';
import { admissionOf, contextOf } from '../http/context.ts';
import { OPERATIONS } from './contract.ts';
import type { Operation } from './openapi/operation.ts';
import { matchRoute, type RouteTable } from './route-table.ts';

/** The rights of the caller, or why the caller may not carry out the operation. */
export type Authorized = { readonly held: Held } | { readonly forbidden: string };

const BY_ID: ReadonlyMap<string, Operation> = new Map(Object.values(OPERATIONS).map((operation) => [operation.id, operation]));

/**
 * `given`: the rights that administrators have given, in the state under which the caller was admitted. What depends on the request,
 * such as the owner of a policy, is checked where the request is carried out. An unknown operation is refused. Pure.
 */
export function authorize(principal: Principal, operationId: string, given: readonly GivenRight[]): Authorized {
  const operation = BY_ID.get(operationId);
  const held = rightsOf(principal, given);
  const forbidden = operation === undefined ? 'No operation has this name.' : refusalOf(operation.access, principal, held);
  return forbidden === null ? { held } : { forbidden };
}

const keyOf = (method: string, template: string) =>
  `${method} ${template.replaceAll(/:(\w+)/g, '{$1}')}` as keyof typeof OPERATIONS;

/**
 * Returns the handler that authorizes every request to these routes. Throws if a route has no operation, or one that needs no token: a
 * route that the contract does not know cannot be guarded.
 */
export function authorizing(table: RouteTable): RequestHandler {
  for (const { template, methods } of table.routes) {
    for (const method of methods) {
      const operation = OPERATIONS[keyOf(method, template)];
      if (operation === undefined || operation.access === 'open')
        throw new Error(`The contract must say what ${method} ${template} needs`);
    }
  }
  requireOrder(table);
  return (req, res, next) => {
    const path = `${req.baseUrl}${req.path}`;
    const template = matchRoute(table, path)?.template;
    // Express answers HEAD with the handler of GET.
    const method = req.method === 'HEAD' ? 'GET' : req.method;
    const operation = template === undefined ? undefined : OPERATIONS[keyOf(method, template)];
    if (operation === undefined) throw new AppError('not_found', 'There is no resource at this path.');
    const context = contextOf(res);
    context.authorize = ({ principal, snapshot }) => {
      const authorized = authorize(principal, operation.id, snapshot.rights);
      if ('forbidden' in authorized) throw new AppError('forbidden', authorized.forbidden);
      return authorized.held;
    };
    context.held = context.authorize(admissionOf(res));
    next();
  };
}

/**
 * Express runs the first route that matches, and `matchRoute` finds the most literal one. Throws if they could differ for a path: the
 * request would be authorized for an operation and carry out a different one.
 */
function requireOrder(table: RouteTable): void {
  for (const one of table.routes) {
    for (const other of table.routes) {
      const path = commonPath(one.template, other.template);
      const method = [...one.methods].find((each) => other.methods.has(each));
      if (path === null || method === undefined) continue;
      const authorized = matchRoute(table, path);
      if (authorized === null || !authorized.methods.has(method)) continue;
      const run = table.routes.find(({ methods, pattern }) => methods.has(method) && pattern.test(path));
      if (run?.template !== authorized.template) {
        throw new Error(`${method} ${authorized.template} must be mounted in front of ${run?.template}: both match ${path}`);
      }
    }
  }
}

/** Returns a path that both templates match; null: there is none. */
function commonPath(one: string, other: string): string | null {
  const [a, b] = [one.split('/'), other.split('/')];
  if (a.length !== b.length) return null;
  const common = a.map((segment, at) => {
    const its = b[at] ?? '';
    if (!segment.startsWith(':')) return its.startsWith(':') || its === segment ? segment : null;
    return its.startsWith(':') ? '-' : its;
  });
  return common.includes(null) ? null : common.join('/');
}
