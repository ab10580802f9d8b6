//! Finding a nats-server.
