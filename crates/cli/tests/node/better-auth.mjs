// A real Better Auth server on loopback, for the login test. Prints one JSON line when it serves:
// {"base": <auth base URL>, "users": [{"email", "password"}]}. In-memory; ends with its parent's pipe.
import { createServer } from "node:http";
import { betterAuth } from "better-auth";
import { memoryAdapter } from "better-auth/adapters/memory";
import { toNodeHandler } from "better-auth/node";
import { bearer, deviceAuthorization, jwt } from "better-auth/plugins";

const server = createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const origin = `http://127.0.0.1:${server.address().port}`;

const database = { user: [], session: [], account: [], verification: [], jwks: [], deviceCode: [], rateLimit: [] };
const auth = betterAuth({
  baseURL: origin,
  basePath: "/api/auth",
  secret: "a-test-secret-of-this-process-only-0123456789",
  database: memoryAdapter(database),
  telemetry: { enabled: false },
  rateLimit: { enabled: false },
  emailAndPassword: { enabled: true },
  trustedOrigins: [origin],
  plugins: [
    bearer(),
    jwt({ jwks: { keyPairConfig: { alg: "EdDSA", crv: "Ed25519" } } }),
    deviceAuthorization({ interval: "1s", expiresIn: "10m", verificationUri: `${origin}/device` }),
  ],
});
server.on("request", toNodeHandler(auth));

const user = { email: "ada@example.test", password: "correct-horse-battery", name: "Ada" };
await auth.api.signUpEmail({ body: user });
console.log(JSON.stringify({ base: `${origin}/api/auth`, users: [user] }));

process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
