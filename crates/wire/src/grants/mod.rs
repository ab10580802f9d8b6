//! Permission templates: what each profile may publish and subscribe to (contract 01 §6).

/// The allow and deny lists of one direction. An empty list is left out of the JWT: the broker reads an empty
/// `allow` as unrestricted (contract 01 §3.2), so [`Permissions`] that name nothing must say so with a deny.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Subjects that are allowed; everything else is denied when this is not empty.
    pub allow: Vec<String>,
    /// Subjects that are denied; a deny beats an allow.
    pub deny: Vec<String>,
}

/// What one connection may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The publish direction.
    pub publish: Rules,
    /// The subscribe direction.
    pub subscribe: Rules,
}
