/** What the routers answer to, read from them once, so that everything else is refused before any handler runs. */
import type { Router } from 'express';

export interface Mount {
  /** Prefix of the router's routes, such as `/api/users`; no trailing slash. */
  readonly path: string;
  readonly router: Router;
}

export interface RouteMatch {
  /** As declared, for example `/api/users/:id`. */
  readonly template: string;
  readonly methods: ReadonlySet<string>;
}

interface RouteEntry extends RouteMatch {
  readonly pattern: RegExp;
}

export type RouteTable = readonly RouteEntry[];

/** Throws for a route whose path is more than literal segments and `:name`s: it could not be told what it answers to. */
export function routeTable(mounts: readonly Mount[]): RouteTable {
  return mounts.flatMap(({ path, router }) =>
    router.stack.flatMap(({ route }) => {
      if (!route) return [];
      const template = `${path}${route.path === '/' ? '' : route.path}` || '/';
      if (!/^(\/|(\/(:?[A-Za-z0-9_.-]+))+)$/.test(template)) throw new Error(`The route ${template} is not of a known form`);
      const literal = template.replaceAll('.', '\\.').replace(/:[A-Za-z0-9_]+/g, '[^/]+');
      const methods = route.stack.map((layer) => layer.method.toUpperCase());
      return [{ template, methods: new Set(methods), pattern: new RegExp(`^${literal}$`) }];
    }),
  );
}

/** The route at this path, with all its methods; null: there is none. A word goes before a `:name`, whichever is declared first. */
export function matchRoute(table: RouteTable, path: string): RouteMatch | null {
  const matches = table.filter(({ pattern }) => pattern.test(path));
  const [template] = matches.map((match) => match.template).sort(wordsFirst);
  if (template === undefined) return null;
  const methods = matches.filter((match) => match.template === template).flatMap((match) => [...match.methods]);
  return { template, methods: new Set(methods) };
}

/** `/policies/lint` before `/policies/:id`: of the templates that fit a path, the one with words farther to the left. */
function wordsFirst(a: string, b: string): number {
  const rank = (template: string): string => template.replaceAll(/:?[^/]+/g, (segment) => (segment.startsWith(':') ? '1' : '0'));
  return rank(a) < rank(b) ? -1 : 1;
}
