/** The routes of the routers, read from them once, so that all other requests are refused before any handler runs. */
import type { Router } from 'express';

export interface Mount {
  /** The prefix of the router's routes, such as `/api/users`, without a trailing slash. */
  readonly path: string;
  readonly router: Router;
}

export interface RouteMatch {
  /** The path as declared, for example `/api/users/:id`. */
  readonly template: string;
  readonly methods: ReadonlySet<string>;
}

interface RouteEntry extends RouteMatch {
  readonly pattern: RegExp;
}

export type RouteTable = readonly RouteEntry[];

/** Returns the routes. Throws if a path has more than literal segments and `:name`s: its matches could not be determined. */
export function routeTable(mounts: readonly Mount[]): RouteTable {
  return mounts.flatMap(({ path, router }) =>
    router.stack.flatMap(({ route }) => {
      if (!route) return [];
      const template = `${path}${route.path === '/' ? '' : route.path}` || '/';
      if (!/^(\/|(\/(:?[A-Za-z0-9_.-]+))+)$/.test(template))
        throw new Error(`The route ${template} must consist of literal segments and :names`);
      const literal = template.replaceAll('.', '\\.').replace(/:[A-Za-z0-9_]+/g, '[^/]+');
      const methods = route.stack.map((layer) => layer.method.toUpperCase());
      return [{ template, methods: new Set(methods), pattern: new RegExp(`^${literal}$`) }];
    }),
  );
}

/**
 * Returns the route for this path, with all its methods; null if there is none. A literal segment wins over a `:name`, in any
 * order of declaration.
 */
export function matchRoute(table: RouteTable, path: string): RouteMatch | null {
  const matches = table.filter(({ pattern }) => pattern.test(path));
  const [template] = matches.map((match) => match.template).sort(wordsFirst);
  if (template === undefined) return null;
  const methods = matches.filter((match) => match.template === template).flatMap((match) => [...match.methods]);
  return { template, methods: new Set(methods) };
}

/** Sorts `/policies/lint` before `/policies/:id`: the template with literal segments farther to the left wins. */
function wordsFirst(a: string, b: string): number {
  const rank = (template: string): string => template.replaceAll(/:?[^/]+/g, (segment) => (segment.startsWith(':') ? '1' : '0'));
  return rank(a) < rank(b) ? -1 : 1;
}
