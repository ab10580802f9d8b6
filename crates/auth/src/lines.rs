//! Lines to standard error from the runtime's threads, none of which ever waits for it.

use std::{
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

/// Lines that wait to be written at most; further ones are counted and dropped.
const WAITING_MAX: usize = 8_192;
/// And their bytes: a line may repeat what a caller sent, and callers are many.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a flush waits for a reader that does not read.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// One writing thread behind a bounded queue.
pub(crate) struct LineWriter {
    waiting: mpsc::Sender<Entry>,
    bytes: Arc<AtomicUsize>,
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
        let (bytes, dropped) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let (held, missed) = (Arc::clone(&bytes), Arc::clone(&dropped));
        let writing = thread::Builder::new()
            .name("stderr-lines".to_owned())
            .spawn(move || write(out, entries, &held, &missed));
        if let Err(error) = writing {
            // Not by `tracing`, whose own lines may come this way.
            let _ = writeln!(
                io::stderr(),
                "auth-service: no thread writes the log, its lines are dropped: {error}"
            );
        }
        Self { waiting, bytes, dropped }
    }

    /// Queues a line, or counts it as dropped. It is one line, whatever somebody has called a space: who can break a line can
    /// forge the next.
    pub(crate) fn line(&self, line: &str) {
        let line = line.replace('\n', "\\n").replace('\r', "\\r");
        let bytes = line.len();
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held > WAITING_BYTES_MAX || self.waiting.try_send(Entry::Line(line)).is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
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
fn write(mut out: impl Write, mut entries: mpsc::Receiver<Entry>, bytes: &AtomicUsize, dropped: &AtomicU64) {
    while let Some(entry) = entries.blocking_recv() {
        let missed = dropped.swap(0, Ordering::Relaxed);
        if missed > 0 {
            let _ = out.write_all(
                format!("auth-service: {missed} lines were dropped: nobody read them in time\n").as_bytes(),
            );
        }
        match entry {
            Entry::Line(mut line) => {
                let held = line.len();
                line.push('\n');
                let _ = out.write_all(line.as_bytes());
                bytes.fetch_sub(held, Ordering::Relaxed);
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

    #[tokio::test]
    async fn an_event_is_one_line_whatever_it_repeats() {
        let (go, reads) = std_mpsc::channel();
        let (begun, _writing) = std_mpsc::channel();
        let read = Arc::new(Mutex::new(String::new()));
        let lines = LineWriter::over(Stalled { reads, begun, read: Arc::clone(&read) }, 2);
        drop(go);
        lines.line("space a\r\nINFO forged");
        lines.flush().await;
        assert_eq!(*read.lock(), "space a\\r\\nINFO forged\n");
    }

    #[tokio::test]
    async fn lines_that_wait_are_bounded_by_their_bytes_too() {
        let (go, reads) = std_mpsc::channel();
        let (begun, writing) = std_mpsc::channel();
        let read = Arc::new(Mutex::new(String::new()));
        let lines = LineWriter::over(Stalled { reads, begun, read: Arc::clone(&read) }, WAITING_MAX);
        lines.line("first");
        writing.recv().unwrap();
        let long = "x".repeat(WAITING_BYTES_MAX / 4);
        for _ in 0..100 {
            lines.line(&long);
        }
        lines.line(&"y".repeat(2 * WAITING_BYTES_MAX));
        assert!(lines.bytes.load(Ordering::Relaxed) <= WAITING_BYTES_MAX);
        lines.line("a short one finds room");
        drop(go);
        lines.flush().await;
        let read = read.lock();
        assert_eq!(read.lines().filter(|line| **line == *long).count(), 3);
        assert!(read.contains("auth-service: 98 lines were dropped"), "{}", read.lines().nth(1).unwrap());
        assert!(read.ends_with("\na short one finds room\n"));
        assert_eq!(lines.bytes.load(Ordering::Relaxed), 0, "what is written counts no more");
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
