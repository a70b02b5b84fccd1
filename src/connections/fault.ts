/** Why an account cannot be connected or used. */

export type ConnectionFaultReason =
  /** What the target or the authorization server says of itself cannot be used. */
  | 'metadata'
  /** The authorization server does not answer. */
  | 'unreachable'
  /** The gateway has no client there and cannot register one. */
  | 'no_client'
  /** The authorization server refused, or the user did. */
  | 'refused'
  /** The sign-in was begun by a different user or in a different browser, is too old, or was used before. */
  | 'foreign';

/** The message is for the user and contains no address except the host of the authorization server. */
export class ConnectionFault extends Error {
  readonly reason: ConnectionFaultReason;

  constructor(reason: ConnectionFaultReason, message: string, options: { readonly cause?: unknown } = {}) {
    super(message, options);
    this.name = 'ConnectionFault';
    this.reason = reason;
  }
}
