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

interface Route extends RouteMatch {
  readonly pattern: RegExp;
}

export interface RouteTable {
  /** In the order of declaration. */
  readonly routes: readonly Route[];
  /** Each template once, with all its methods, by the number of its segments. The template that wins is first. */
  readonly ranked: ReadonlyMap<number, readonly Route[]>;
}

/** Returns the routes. Throws if a path has more than literal segments and `:name`s: its matches could not be determined. */
export function routeTable(mounts: readonly Mount[]): RouteTable {
  const routes = mounts.flatMap(({ path, router }) =>
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
  const merged = new Map<string, Route>();
  for (const route of routes) {
    const methods = new Set([...(merged.get(route.template)?.methods ?? []), ...route.methods]);
    merged.set(route.template, { ...route, methods });
  }
  const ranked = new Map<number, Route[]>();
  for (const route of [...merged.values()].sort((a, b) => wordsFirst(a.template, b.template))) {
    const segments = segmentsOf(route.template);
    ranked.set(segments, [...(ranked.get(segments) ?? []), route]);
  }
  return { routes, ranked };
}

const segmentsOf = (path: string): number => path.split('/').length;

/**
 * Returns the route for this path, with all its methods; null if there is none. A literal segment wins over a `:name`, in any
 * order of declaration.
 */
export const matchRoute = ({ ranked }: RouteTable, path: string): RouteMatch | null =>
  ranked.get(segmentsOf(path))?.find(({ pattern }) => pattern.test(path)) ?? null;

/** Sorts `/policies/lint` before `/policies/:id`: the template with literal segments farther to the left wins. */
function wordsFirst(a: string, b: string): number {
  const rank = (template: string): string => template.replaceAll(/:?[^/]+/g, (segment) => (segment.startsWith(':') ? '1' : '0'));
  const [first, second] = [rank(a), rank(b)];
  return first < second ? -1 : first > second ? 1 : 0;
}
