//! A disk that hangs: what the runtime has for disk work waits, as it does on a mount whose server is gone.

use std::{io, sync::mpsc};

use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinHandle, spawn_blocking},
};

/// It hangs until it is healed, or dropped.
pub struct HungDisk {
    release: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl HungDisk {
    /// A runtime whose disk can hang: it has one thread for it.
    pub fn runtime() -> io::Result<Runtime> {
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build()
    }

    /// Hangs from here on: inside such a runtime.
    pub fn hang() -> Self {
        let (release, released) = mpsc::channel();
        let thread = spawn_blocking(move || {
            // An error is the release.
            let _ = released.recv();
        });
        Self { release, thread }
    }

    /// Goes on with what was asked of it meanwhile.
    pub async fn heal(self) {
        drop(self.release);
        let _ = self.thread.await;
    }
}
