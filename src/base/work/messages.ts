/** The messages between a worker thread and the gateway's main thread. */
import { AppError, type ErrorCode, type FieldError } from '../errors.ts';

export interface Progress {
  readonly done: number;
  readonly total: number;
}

export type ToThread =
  | { readonly kind: 'job'; readonly name: string; readonly input: unknown }
  | { readonly kind: 'items'; readonly question: number; readonly items: readonly unknown[] }
  | { readonly kind: 'answer'; readonly question: number; readonly value: unknown }
  | { readonly kind: 'no answer'; readonly question: number; readonly failure: Failure };

export type FromThread =
  | { readonly kind: 'question'; readonly question: number; readonly name: string; readonly args: readonly unknown[] }
  | { readonly kind: 'items'; readonly items: readonly unknown[] }
  | { readonly kind: 'progress'; readonly progress: Progress }
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly failure: Failure };

/** An error as a message: only plain members can be sent between threads. */
export interface Failure {
  readonly code: ErrorCode | null;
  readonly message: string;
  readonly stack: string | undefined;
  readonly errors: readonly FieldError[] | undefined;
  readonly retryAfter: number | undefined;
}

export function failureOf(error: unknown): Failure {
  const { message, stack } = error instanceof Error ? error : new Error(String(error));
  const known = error instanceof AppError ? error : null;
  return { code: known?.code ?? null, message, stack, errors: known?.errors, retryAfter: known?.retryAfter };
}

export function errorOf({ code, message, stack, errors, retryAfter }: Failure): Error {
  const error = code === null ? new Error(message) : new AppError(code, message, { errors, retryAfter });
  if (stack !== undefined) error.stack = stack;
  return error;
}
