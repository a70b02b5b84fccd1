/** Credentials in requests of the REST API: the header or variable, the subject, and the value. */
import Joi from 'joi';
import { invalidRequest } from '../base/errors.ts';
import { checked, model, text, validate } from '../base/validate.ts';
import { CREDENTIAL_TYPES, type CredentialKey, type Target } from './target.ts';

export const CREDENTIAL_LIMITS = { name: 256, value: 8192, subjectValue: 256 } as const;

/** Most specific first. */
export const CREDENTIAL_SUBJECTS = ['user', 'group', 'role', 'default'] as const;

/** The principals for whose calls a credential is used. */
export interface CredentialSubject {
  readonly subject_type: (typeof CREDENTIAL_SUBJECTS)[number];
  /** Empty for `default`. */
  readonly subject_value: string;
}

export const DEFAULT_SUBJECT: CredentialSubject = { subject_type: 'default', subject_value: '' };

export interface CredentialInput extends CredentialKey {
  readonly value: string;
}

export const BEARER: CredentialKey = { type: 'bearer', name: 'authorization' };

/** Headers with a meaning for the connection, for MCP or for the gateway. `__proto__` cannot be a member of an object. */
const RESERVED_HEADERS =
  /^(connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|host|expect|via|forwarded|x-forwarded-.*|content-.*|accept|accept-.*|cookie2?|set-cookie2?|origin|referer|user-agent|range|if-.*|date|mcp-.*|last-event-id|sec-.*|access-control-.*|traceparent|tracestate|baggage|__proto__)$/;
const TOKEN = /^[!#$%&'*+.^_`|~0-9a-z-]+$/;

function headerProblem(name: string): string | null {
  const lower = name.toLowerCase();
  if (!TOKEN.test(lower)) return 'must be the name of an HTTP header';
  return RESERVED_HEADERS.test(lower) ? `the header ${name} cannot carry a credential` : null;
}

/** Returns why a name is not allowed for an environment variable; null: it is allowed. */
export function variableProblem(name: string): string | null {
  const valid = /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) && name !== '__proto__';
  return valid ? null : 'must have only ASCII letters, digits and _, and must not begin with a digit';
}

/**
 * Variables whose value can make a process run different code, or send its data, including other credentials, elsewhere:
 * loaders, interpreters, shells, paths of programs and settings, proxies and certificates.
 */
const STEERING =
  /^(LD_.*|DYLD_.*|GCONV_PATH|LOCPATH|HOSTALIASES|LOCALDOMAIN|RES_OPTIONS|NLSPATH|GLIBC_.*|MALLOC_.*|NODE_.*|NPM_CONFIG_.*|BUN_.*|DENO_.*|PYTHON.*|PIP_.*|UV_.*|VIRTUAL_ENV|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|LUA_.*|PHP.*|JAVA.*|_JAVA.*|JDK_.*|CLASSPATH|DOTNET_.*|CORECLR_.*|COMPLUS_.*|GO(DEBUG|FLAGS|PROXY)|BASH.*|ENV|ZDOTDIR|SHELL|SHELLOPTS|IFS|PS[0-4]|PROMPT_COMMAND|CDPATH|EDITOR|VISUAL|BROWSER|GIT_(SSH|SSL|ASKPASS|EXEC|CONFIG|EDITOR|SEQUENCE|PAGER|PROXY|TEMPLATE|EXTERNAL|DIR|WORK|ALLOW|ATTR).*|SSH_.*|OPENSSL_.*|SSL.*|CURL_.*|.*_CA_(BUNDLE|CERTS)|CAROOT|PGSSL.*|GRPC_.*|TS_NODE_.*|TSX_.*|YARN_.*|PNPM_.*|COREPACK_.*|RUSTC.*|CARGO_.*|MAKEFLAGS|LESS(OPEN|CLOSE)|(.*_|MAN)?PAGER|.*_EDITOR|.*_RSH|SVN_SSH|.*_ASKPASS|.*_HOME|.*LIBPATH|VIMINIT|TF_CLI_ARGS.*|MAVEN_ARGS|GIO_.*|HELM_PLUGINS|ANSIBLE_(LIBRARY|.*_PLUGINS|.*_PATHS?)|ELECTRON_.*|LDAP(RC|CONF)|SASL_(CONF_)?PATH|OCI_CLI_RC_FILE|(ERL|ELIXIR|JULIA|PUPPETEER|PLAYWRIGHT|GUILE|NIX|R)_.*|.*_OPTS|ODBC.*|WGETRC|.*PROXY|PATH|PATHEXT|HOME|USERPROFILE|PWD|XDG_.*|APPDATA|LOCALAPPDATA|TMPDIR|TMP|TEMP|COMSPEC|SYSTEMROOT|WINDIR)$/i;

export const isSteeringVariable = (name: string): boolean => STEERING.test(name);

/** Variables that tell many programs with which host, account or settings file to use their credentials. */
const DIRECTING =
  /^((.*_)?((HOSTNAME|SERVER|(SUB)?DOMAIN|SITE|BROKER|NODE)S?|ADDR|ADDRESS|BASE|PORT|ORIGIN|GATEWAY|REGISTRY|PROFILE|CONFIG|WEBHOOK|AUTHORITY|ISSUER|SOCKET|UPSTREAM|RELAY|NAMESERVER)(_.*)?|(.*_)?(TENANT|ACCOUNT|INSTANCE|REGION|CLOUD|CONN|CONNECTION|API_ROOT)(_(ID|NAME|STRING))?|GITLAB_API|SHOPIFY_(STORE|SHOP)|.*_PROJECT_REF|OKTA_ORG(_NAME)?|PINECONE_ENV(IRONMENT)?|DATABASE|MONGODB|.*(HOST|ENDPOINT|URL|URI|DSN)S?(_.*)?|PG(HOST|PORT|SERVICE|SYSCONFDIR).*|TNS_ADMIN|NETRC|KUBECONFIG|DOCKER_.*|AWS_SHARED_CREDENTIALS_FILE|AWS_WEB_IDENTITY_TOKEN_FILE|GOOGLE_APPLICATION_CREDENTIALS|KRB5CCNAME)$/i;

/** Whether the value of the variable can send the other credentials of the process elsewhere. */
export const isRedirectingVariable = (name: string): boolean => STEERING.test(name) || DIRECTING.test(name);

/** Whether a target of this transport can take such a credential. */
export function fitsTransport(transport: Target['transport'], type: CredentialKey['type']): boolean {
  switch (type) {
    case 'bearer':
    case 'header':
      return transport !== 'stdio';
    case 'env':
      return transport === 'stdio';
  }
}

const anyName = Joi.string().max(CREDENTIAL_LIMITS.name);
const headerName = checked(anyName, headerProblem).custom((name: string) => name.toLowerCase());
const variableName = checked(anyName, variableProblem);

const type = Joi.valid(...CREDENTIAL_TYPES).required();
export const credentialName = Joi.string().description(
  '`authorization` for a bearer, the name in lower case for a header, the name of the variable for env.',
);
const bearerName = Joi.forbidden().messages({ 'any.unknown': 'is only for the types header and env' });
const nameFor = (bearer: Joi.Schema, env: Joi.Schema): Joi.Schema =>
  Joi.when('type', {
    switch: [
      // biome-ignore lint/suspicious/noThenProperty: joi's word for it
      { is: 'header', then: headerName.required() },
      // biome-ignore lint/suspicious/noThenProperty: joi's word for it
      { is: 'env', then: env },
    ],
    otherwise: bearer,
  });

/** Returns why a value is not allowed; null: it is. A header line and the environment of a process have different rules. */
function valueProblem({ type }: Pick<CredentialKey, 'type'>, value: string): string | null {
  switch (type) {
    case 'bearer':
    case 'header':
      return /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(value)
        ? null
        : 'must be printable ASCII without spaces at its ends';
    case 'env':
      return value.includes('\0') || !value.isWellFormed() ? 'must be well-formed Unicode without NUL' : null;
  }
}

const value = Joi.string().max(CREDENTIAL_LIMITS.value).required();

const bearer = model('NewBearerCredential', { type: Joi.valid('bearer').required(), value });
const withName = model('NewNamedCredential', {
  type: Joi.valid('header', 'env').required(),
  name: Joi.string().max(CREDENTIAL_LIMITS.name).required(),
  value,
});
export const newCredential = Joi.object<{ type: CredentialKey['type']; name?: string; value: string }>({
  type,
  name: nameFor(bearerName, variableName.required()),
  value,
})
  .meta({ model: 'NewCredential', as: Joi.alternatives(bearer, withName).match('one') })
  .required();

/** Throws AppError `invalid_request`, like the other functions here. No error shows the value. */
export function readCredential(body: unknown): CredentialInput {
  const read = validate(newCredential, body);
  const input: CredentialInput = { type: read.type, name: read.name ?? BEARER.name, value: read.value };
  checkValue(input, input.value);
  return input;
}

export function checkValue(key: Pick<CredentialKey, 'type'>, value: string): void {
  const problem = valueProblem(key, value);
  if (problem !== null) throw invalidRequest([{ path: 'value', message: problem }]);
}

export const ownValue = model<{ value: string }>('OwnCredentialValue', { value }).required();

/** Reads the value only; `checkValue` checks that it fits the key. */
export function readOwnValue(body: unknown): string {
  return validate(ownValue, body).value;
}

/** A key for which users may supply values. A bearer may have the name that the API shows for it. */
export const suppliedKey = model<CredentialKey>('UserCredential', {
  type,
  name: nameFor(
    Joi.valid(BEARER.name),
    checked(variableName.required(), (name) =>
      isSteeringVariable(name)
        ? `the variable ${name} cannot be supplied by users, because it controls the process itself`
        : null,
    ),
  ).meta({ as: credentialName }),
}).custom((key: CredentialKey) => ({ type: key.type, name: key.name ?? BEARER.name }));

const subjectValue = text(CREDENTIAL_LIMITS.subjectValue).required();

/** `value` is a decoded path segment. */
export function readSubject(
  subject_type: Exclude<CredentialSubject['subject_type'], 'default'>,
  value: unknown,
): CredentialSubject {
  const { subject_value } = validate(Joi.object<{ subject_value: string }>({ subject_value: subjectValue }), {
    subject_value: value,
  });
  return { subject_type, subject_value };
}
