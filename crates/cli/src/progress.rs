//! What a person sees on stderr while a command waits.

use std::{future::Future, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use crate::context::Context;

/// How long a command may be silent.
const SILENT: Duration = Duration::from_secs(1);

/// The line of one command: a spinner when a person watches, else a note a step.
pub struct Progress<'a> {
    ctx: &'a Context,
    spinner: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    /// A line that shows nothing yet.
    pub fn start(ctx: &'a Context) -> Self {
        let spinner = (ctx.interactive && !ctx.json).then(|| {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        Self { ctx, spinner }
    }

    /// What is done now.
    pub fn step(&self, what: &str) {
        match &self.spinner {
            Some(spinner) => {
                spinner.reset_elapsed();
                spinner.set_message(what.to_owned());
            }
            None => self.ctx.note(what),
        }
    }

    /// What is waited for now, and for how long at most.
    pub fn wait(&self, what: &str, at_most: Duration) {
        self.step(&within(what, at_most));
    }

    /// A sentence that stays.
    pub fn note(&self, sentence: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| self.ctx.note(sentence)),
            None => self.ctx.note(sentence),
        }
    }
}

/// A wait, and how long it lasts at most.
pub fn within(what: &str, at_most: Duration) -> String {
    format!("{what} ({} s at most)", at_most.as_secs())
}

/// Waits for `work`, and says so once it has taken a second: nobody is left to wonder whether the command hangs.
pub fn if_slow<T>(ctx: &Context, what: &str, work: impl Future<Output = T>) -> impl Future<Output = T> {
    let mut work = Box::pin(work);
    async move {
        if let Ok(done) = tokio::time::timeout(SILENT, work.as_mut()).await {
            return done;
        }
        let progress = Progress::start(ctx);
        progress.step(what);
        let done = work.await;
        drop(progress);
        done
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::sink;

    use cotal_workspace::root::{Home, Root};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;

    /// A standard error whose every line somebody waits for.
    struct Told(UnboundedSender<String>);

    impl std::io::Write for Told {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_wait_is_told_once_it_is_long_and_never_when_it_is_short() {
        let (tell, mut told) = unbounded_channel();
        let (home, root) = (Home::at("/nowhere"), Root::at("/nowhere"));
        let ctx = Context::of_parts(home, root, "cotal".into(), |_| None, sink(), Told(tell));
        assert_eq!(if_slow(&ctx, "nothing", async { 7 }).await, 7);
        let what = within("waiting for somebody", Duration::from_secs(5));
        // It ends because it was told.
        let line = if_slow(&ctx, &what, async {
            let mut line = String::new();
            while !line.ends_with('\n') {
                line += &told.recv().await.unwrap();
            }
            line
        })
        .await;
        assert_eq!(line, "waiting for somebody (5 s at most)\n");
    }
}
