//! Detached daemons.
