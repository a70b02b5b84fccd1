/**
 * What clients read to find the authorization server (RFC 8414, OpenID Connect Discovery, RFC 9728). All addresses come from `PUBLIC_URL`,
 * never from the request. Pure.
 */
import { BY_ASSERTION as ID_JAG_PROFILE } from '../auth/grant-store.ts';
import { ID_JAG_GRANT_TYPE } from './id-jag.ts';
import { ROUTES } from './provider.ts';

export const SCOPE = 'mcp';

/** `registration`: whether clients may register. `idJag`: whether a provider is registered whose assertions they may exchange. */
export const serverMetadata = (publicUrl: string, registration: boolean, idJag: boolean) => ({
  issuer: publicUrl,
  authorization_endpoint: `${publicUrl}${ROUTES.authorization}`,
  token_endpoint: `${publicUrl}${ROUTES.token}`,
  ...(registration ? { registration_endpoint: `${publicUrl}${ROUTES.registration}` } : {}),
  revocation_endpoint: `${publicUrl}${ROUTES.revocation}`,
  device_authorization_endpoint: `${publicUrl}${ROUTES.device_authorization}`,
  jwks_uri: `${publicUrl}/.well-known/jwks.json`,
  // Clients get refresh tokens without `offline_access`, so it is not offered: those that see it always ask for consent again.
  scopes_supported: [SCOPE, 'openid'],
  response_types_supported: ['code'],
  response_modes_supported: ['query'],
  grant_types_supported: [
    ...['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
    ...(idJag ? [ID_JAG_GRANT_TYPE] : []),
  ],
  ...(idJag ? { authorization_grant_profiles_supported: [ID_JAG_PROFILE] } : {}),
  token_endpoint_auth_methods_supported: ['none', 'client_secret_basic', 'client_secret_post'],
  revocation_endpoint_auth_methods_supported: ['none', 'client_secret_basic', 'client_secret_post'],
  code_challenge_methods_supported: ['S256'],
  authorization_response_iss_parameter_supported: true,
  client_id_metadata_document_supported: true,
  subject_types_supported: ['public'],
  id_token_signing_alg_values_supported: ['ES256'],
  claims_supported: ['sub', 'iss', 'aud', 'exp', 'iat', 'auth_time'],
});

/** `path`: that of the MCP endpoint, or empty for the whole gateway. */
export const resourceMetadata = (publicUrl: string, path: string) => ({
  resource: `${publicUrl}${path}`,
  authorization_servers: [publicUrl],
  scopes_supported: [SCOPE],
  bearer_methods_supported: ['header'],
  resource_name: 'Portcullis',
});
