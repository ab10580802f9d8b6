// A JOSE library not written in Rust verifies a bearer against a JWKS document.
// stdin: JSON {jwks, token, issuer, audience}; stdout: the verified header and claims as JSON.
import { createLocalJWKSet, jwtVerify } from "jose";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const { jwks, token, issuer, audience } = JSON.parse(text);
const { protectedHeader, payload } = await jwtVerify(token, createLocalJWKSet(jwks), {
  issuer,
  audience,
  algorithms: ["EdDSA"],
});
console.log(JSON.stringify({ header: protectedHeader, claims: payload }));
