"""A JOSE library not written in Rust verifies a bearer against a JWKS document.

stdin: JSON {jwks, token, issuer, audience}; stdout: the verified header and claims as JSON.
"""
import json
import sys

import jwt

order = json.load(sys.stdin)
header = jwt.get_unverified_header(order["token"])
key = next(k for k in jwt.PyJWKSet.from_dict(order["jwks"]).keys if k.key_id == header["kid"])
claims = jwt.decode(
    order["token"],
    key.key,
    algorithms=["EdDSA"],
    issuer=order["issuer"],
    audience=order["audience"],
    options={"require": ["exp", "iat", "nbf", "iss", "aud", "sub"]},
)
print(json.dumps({"header": header, "claims": claims}))
