//! Credential rows and the mint ceremony (contract 07 §4).
