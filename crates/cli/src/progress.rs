//! What a person sees on stderr while a command waits.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::context::Context;

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
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
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
            Some(spinner) => spinner.set_message(what.to_owned()),
            None => self.ctx.note(what),
        }
    }

    /// A sentence that stays.
    pub fn note(&self, sentence: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| self.ctx.note(sentence)),
            None => self.ctx.note(sentence),
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
