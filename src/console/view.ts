/** What a page of the console gets: the request, and the operations of REST that its user may carry out. */
import type { Request } from 'express';
import { AppError, type ErrorCode } from '../base/errors.ts';
import type { Content } from '../browser/html.ts';
import type { Answer, AskHeaders, Method } from './ask.ts';
import type { Form, Refused } from './form.ts';

export interface PageLink {
  readonly path: string;
  readonly label: string;
}

export interface View {
  /** Rejects with the error of the operation, for example AppError `forbidden`. */
  readonly get: <T>(path: string) => Promise<Answer<T>>;
  readonly post: <T>(path: string, body: object) => Promise<Answer<T>>;
  /** The query of the page: what was given once and is not empty, because forms also send the fields that are empty. */
  readonly query: Readonly<Record<string, string>>;
  /** Carries out a change. Rejects with the error of the operation. */
  readonly send: <T = unknown>(method: Method, path: string, body?: object, headers?: AskHeaders) => Promise<Answer<T>>;
  /**
   * Makes markup that takes long, in a turn of the user among all long answers. The work must not call operations, because some of them wait for
   * such a turn, too.
   */
  readonly inTurn: <T>(work: () => Promise<T>) => Promise<T>;
  /** What was done before the browser came here, in the words of `DONE` of the page. */
  readonly done: string;
  /** The form that was refused; null: none was sent. */
  readonly refused: Refused | null;
  /** Whether the user has proved who they are within 10 minutes. Sensitive changes need that. */
  readonly isRecent: boolean;
  /** The sign-in page that asks for the proof and leads back here. */
  readonly provePath: string;
  readonly userId: string;
  /** The pages of the menu that the user may open. */
  readonly pages: readonly PageLink[];
  /** Whether the user may carry out the operation, as far as that does not depend on its object. */
  readonly may: (operation: string) => boolean;
  readonly publicUrl: string;
  /** The id or name in the path of the page, in the form that it must have; empty if the path has none. */
  readonly id: string;
}

export interface Shown {
  /** The HTTP status. Absent: 200. */
  readonly status?: number;
  readonly title: string;
  readonly body: Content;
  /** The browser loads the page again after so many seconds. */
  readonly againIn?: number;
  /** The paths of scripts that only this page needs. */
  readonly scripts?: readonly string[];
}

/** What a page that changes something gets. */
export interface Changing extends View {
  readonly form: Form;
  /** Throws ProofNeeded unless the user has proved who they are within 10 minutes. `kept`: a form without secrets, which is not lost. */
  readonly prove: (kept?: Form) => void;
}

/** A file that the browser saves. */
export interface Download {
  /** ASCII without quotes. */
  readonly fileName: string;
  readonly text: string;
}

/** Carries out the change of a form. Returns the path to which the browser goes, or the page to show, for what is shown only once. */
export type Act = (view: Changing) => Promise<string | Shown | Download>;

export function queryOf({ query }: Pick<Request, 'query'>): Record<string, string> {
  const given = Object.entries(query).filter((entry): entry is [string, string] => typeof entry[1] === 'string');
  return Object.fromEntries(given.filter(([, value]) => value !== ''));
}

/** Returns null if the user may not carry out the operation, or there is no such thing. `also`: a different refusal that gives null. */
export async function unlessRefused<T>(work: Promise<T>, also: ErrorCode = 'forbidden'): Promise<T | null> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof AppError && ['forbidden', 'not_found', also].includes(error.code)) return null;
    throw error;
  }
}

/** Throws AppError `forbidden` if the user may not carry out the operation for which the page is. */
export function requireMay({ may }: View, operation: string): void {
  if (!may(operation)) throw new AppError('forbidden', 'You do not have the right that this page needs. Ask an administrator.');
}

/** Returns the path with these members in its query. */
export const withQuery = (path: string, query: Readonly<Record<string, string>>): string =>
  `${path}?${new URLSearchParams(query)}`;

/** Returns the query of the next page without `limit`, which the page gives itself. */
export function nextQuery(next: URLSearchParams | null): URLSearchParams | null {
  next?.delete('limit');
  return next;
}
