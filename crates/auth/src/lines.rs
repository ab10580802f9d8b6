//! Lines to standard error from the runtime's threads, none of which ever waits for it.

use std::{
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

/// Lines that wait to be written at most; further ones are counted and dropped.
const WAITING_MAX: usize = 8_192;
/// How long a flush waits for a reader that does not read.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// One writing thread behind a bounded queue.
pub(crate) struct LineWriter {
    waiting: mpsc::Sender<Entry>,
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Line(String),
    Flushed(oneshot::Sender<()>),
}

impl LineWriter {
    /// The process's standard error: one stream, so one writer, however many contexts share it.
    pub(crate) fn stderr() -> &'static Self {
        static WRITER: OnceLock<LineWriter> = OnceLock::new();
        WRITER.get_or_init(|| Self::over(std::io::stderr(), WAITING_MAX))
    }

    fn over(out: impl Write + Send + 'static, capacity: usize) -> Self {
        let (waiting, entries) = mpsc::channel(capacity);
        let dropped = Arc::new(AtomicU64::new(0));
        let missed = Arc::clone(&dropped);
        let writing = thread::Builder::new()
            .name("stderr-lines".to_owned())
            .spawn(move || write(out, entries, &missed));
        if let Err(error) = writing {
            // Not by `tracing`, whose own lines may come this way.
            let _ = writeln!(
                io::stderr(),
                "auth-service: no thread writes the log, its lines are dropped: {error}"
            );
        }
        Self { waiting, dropped }
    }

    /// Queues a line, or counts it as dropped.
    pub(crate) fn line(&self, line: &str) {
        if self.waiting.try_send(Entry::Line(line.to_owned())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what is queued now is written, at most a second.
    pub(crate) async fn flush(&self) {
        let (flushed, done) = oneshot::channel();
        let flush = async {
            if self.waiting.send(Entry::Flushed(flushed)).await.is_ok() {
                let _ = done.await;
            }
        };
        let _ = tokio::time::timeout(FLUSH_PATIENCE, flush).await;
    }
}

/// One event of a log: what is written to it becomes one queued line when it is dropped.
#[derive(Debug, Default)]
pub struct StderrLine(Vec<u8>);

/// Standard error for a `tracing` subscriber of a process that serves: an event whose reader stalls must not hold a
/// connect up. [`run_auth_service`](crate::run_auth_service) writes what is left before it returns.
pub fn stderr_line() -> StderrLine {
    StderrLine::default()
}

impl Write for StderrLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for StderrLine {
    fn drop(&mut self) {
        LineWriter::stderr().line(String::from_utf8_lossy(&self.0).trim_end_matches('\n'));
    }
}

/// A closed stream stops nothing: there is nowhere left to say so.
fn write(mut out: impl Write, mut entries: mpsc::Receiver<Entry>, dropped: &AtomicU64) {
    while let Some(entry) = entries.blocking_recv() {
        let missed = dropped.swap(0, Ordering::Relaxed);
        if missed > 0 {
            let _ = out.write_all(
                format!("auth-service: {missed} lines were dropped: nobody read them in time\n").as_bytes(),
            );
        }
        match entry {
            Entry::Line(mut line) => {
                line.push('\n');
                let _ = out.write_all(line.as_bytes());
            }
            Entry::Flushed(flushed) => {
                let _ = out.flush();
                let _ = flushed.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as std_mpsc;

    use parking_lot::Mutex;

    use super::*;

    /// A pipe whose reader reads once for each word of the test.
    struct Stalled {
        reads: std_mpsc::Receiver<()>,
        begun: std_mpsc::Sender<()>,
        read: Arc<Mutex<String>>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            // A test that let go of its end reads all.
            let _ = self.reads.recv();
            self.read.lock().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_reader_that_stalls_blocks_nobody_and_a_later_line_says_how_many_it_missed() {
        let (go, reads) = std_mpsc::channel();
        let (begun, writing) = std_mpsc::channel();
        let read = Arc::new(Mutex::new(String::new()));
        let lines = LineWriter::over(Stalled { reads, begun, read: Arc::clone(&read) }, 2);
        lines.line("first");
        writing.recv().unwrap();
        for line in ["second", "third", "fourth", "fifth", "sixth"] {
            lines.line(line);
        }
        drop(go);
        lines.flush().await;
        let told = "auth-service: 3 lines were dropped: nobody read them in time";
        assert_eq!(*read.lock(), format!("first\n{told}\nsecond\nthird\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_does_not_wait_for_ever() {
        let (_go, reads) = std_mpsc::channel();
        let (begun, _writing) = std_mpsc::channel();
        let lines = LineWriter::over(Stalled { reads, begun, read: Arc::default() }, 2);
        lines.line("never read");
        lines.flush().await;
    }
}
