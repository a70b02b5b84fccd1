/** A target as the request path sees it. */
export const TRANSPORTS = ['streamable-http', 'sse', 'stdio'] as const;
export type Transport = (typeof TRANSPORTS)[number];

/** Of targets: they are segments of paths, and prefixes of names where several targets share one endpoint. */
export const TARGET_NAME = /^[a-z][a-z0-9-]{0,62}$/;

export interface Target {
  /** Lower-case UUID. */
  readonly id: string;
  /** A `TARGET_NAME`, unique; the path segment of `/mcp/<name>`. */
  readonly name: string;
  readonly description: string | null;
  readonly transport: Transport;
  readonly url: string;
  readonly enabled: boolean;
  readonly created_at: number;
  readonly updated_at: number;
}

/** The gateway's own credential for an upstream: one header. Never leaves the process but towards `origin`. */
export interface UpstreamCredential {
  readonly header: string;
  readonly value: string;
}

/** What a request needs to know of a target; `credential` is `unusable` when the target's origin has changed since it was set. */
export interface RoutedTarget extends Target {
  readonly credential: UpstreamCredential | 'none' | 'unusable';
}
