//! A page of the book as the commands that it tells the reader to type.
//!
//! A block of ` ```console ` is typed by the tests, in a directory of its own:
//!
//! - a line that starts with `$ ` is a command; a backslash at its end goes on in the next line;
//! - the lines below it are what it prints: each must be found in the output, in this order, `...` standing for
//!   anything. What is not shown may be printed too;
//! - a command ends with exit code 0, or with the one that its comment names: `# exit 1`;
//! - one whose comment is `# stays` goes on beside those that follow, once it has printed what is below it; it is one
//!   program, told to end (SIGTERM) after the last of them, and ends with 0;
//! - the blocks of a page are one terminal: a `cd` and a variable last.
//!
//! A block of ` ```console,elsewhere ` is for a machine that a test does not have: a provider of one's own, a cluster,
//! a service manager. It is shown and not typed. `<!-- book: a space is up -->` gives a page what the reader has by then.

/// Where a page says that its reader has a space.
pub(crate) const SPACE_IS_UP: &str = "<!-- book: a space is up -->";
const FENCE: &str = "```";
const TYPED: &str = "console";
const SHOWN: &str = "console,elsewhere";
/// What a block of shell commands must not be called, because nothing would type it.
const UNTYPED: [&str; 5] = ["sh", "bash", "shell", "shell-session", "zsh"];
const EXIT: &str = "# exit ";
const STAYS: &str = "# stays";

/// A page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Whether a space is up before the first command.
    pub(crate) space_is_up: bool,
    /// What is typed.
    pub(crate) commands: Vec<Typed>,
}

/// A command and what it is said to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    /// The line of the page, from 1.
    pub(crate) line: usize,
    /// The text that the shell gets.
    pub(crate) command: String,
    /// The exit code.
    pub(crate) exit: i32,
    /// Whether it goes on beside what follows.
    pub(crate) stays: bool,
    /// What the output holds, in order.
    pub(crate) prints: Vec<String>,
}

impl Page {
    /// Reads a page. What nobody would type or could check is refused with its line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut page = Self { space_is_up: text.contains(SPACE_IS_UP), ..Self::default() };
        let mut block: Option<bool> = None;
        let mut goes_on = false;
        for (at, line) in text.lines().enumerate() {
            let number = at + 1;
            match (block, line.trim_start().strip_prefix(FENCE)) {
                (None, Some(kind)) => {
                    if UNTYPED.contains(&kind.split(',').next().unwrap_or_default()) {
                        return Err(format!(
                            "line {number}: a block of `{kind}` is typed by nobody: `{TYPED}`, or `{SHOWN}`"
                        ));
                    }
                    block = Some(kind == TYPED);
                }
                (Some(_), Some("")) => {
                    if goes_on {
                        return Err(format!("line {number}: the last command does not end"));
                    }
                    if let Some(silent) =
                        page.commands.iter().find(|typed| typed.stays && typed.prints.is_empty())
                    {
                        return Err(format!(
                            "line {}: it stays, and nothing says when it is ready",
                            silent.line
                        ));
                    }
                    block = None;
                }
                (Some(true), _) => page.take(line, number, &mut goes_on)?,
                _ => {}
            }
        }
        Ok(page)
    }

    fn take(&mut self, line: &str, number: usize, goes_on: &mut bool) -> Result<(), String> {
        let stray = || format!("line {number}: {line:?} is the output of no command");
        if *goes_on {
            let typed = self.commands.last_mut().ok_or_else(stray)?;
            typed.command.push('\n');
            typed.command.push_str(line);
        } else if let Some(command) = line.strip_prefix("$ ") {
            let (command, stays) = (command.to_owned(), false);
            self.commands.push(Typed { line: number, command, exit: 0, stays, prints: Vec::new() });
        } else if !line.trim().is_empty() {
            self.commands.last_mut().ok_or_else(stray)?.prints.push(line.trim().to_owned());
            return Ok(());
        } else {
            return Ok(());
        }
        *goes_on = line.ends_with('\\');
        if line.ends_with(STAYS) {
            self.commands.last_mut().ok_or_else(stray)?.stays = true;
        }
        if let Some((_, code)) = line.rsplit_once(EXIT) {
            let typed = self.commands.last_mut().ok_or_else(stray)?;
            typed.exit =
                code.trim().parse().map_err(|_| format!("line {number}: {code:?} is no exit code"))?;
        }
        Ok(())
    }
}

impl Typed {
    /// The first expectation that the output does not hold.
    pub(crate) fn missing(&self, output: &str) -> Option<&str> {
        let mut lines = output.lines();
        self.prints.iter().find(|wanted| !lines.any(|line| holds(line, wanted))).map(String::as_str)
    }
}

/// What stands between the `...` of a line.
pub(crate) fn pieces(wanted: &str) -> impl Iterator<Item = &str> {
    wanted.split("...")
}

/// Whether a line holds the pieces, in order.
fn holds(line: &str, wanted: &str) -> bool {
    let mut rest = line;
    pieces(wanted).all(|piece| {
        let found = rest.find(piece).map(|at| &rest[at + piece.len()..]);
        found.inspect(|after| rest = after).is_some()
    })
}

#[test]
fn a_page_is_read_as_its_commands_and_what_they_print() {
    let text = "# Title\n\n```console\n$ cotal up \\\n    --user-auth\nspace main is up at nats://...\n$ cd x && false # exit 1\n```\n\
                ```console,elsewhere\n$ rm -rf /\n```\n```json\n{}\n```\n";
    let page = Page::parse(text).unwrap();
    assert_eq!(page.commands.len(), 2);
    let up = &page.commands[0];
    assert_eq!((up.line, up.command.as_str(), up.exit), (4, "cotal up \\\n    --user-auth", 0));
    assert_eq!(up.missing("waiting\nspace main is up at nats://127.0.0.1:4222 (nats-server 2.15.1)\n"), None);
    assert_eq!(up.missing("space main is\nup at nats://\n"), Some("space main is up at nats://..."));
    assert_eq!(page.commands[1].exit, 1);
    let stays = Page::parse("```console\n$ serve   # stays\nready...\n$ ask\n```\n").unwrap();
    assert_eq!(stays.commands.iter().map(|typed| typed.stays).collect::<Vec<_>>(), [true, false]);
    assert!(!page.space_is_up && Page::parse(SPACE_IS_UP).unwrap().space_is_up);
}

#[test]
fn what_nobody_would_type_or_could_check_is_refused() {
    for text in [
        "```sh\ncotal up\n```\n",
        "```bash\n```\n",
        "```console\noutput of nothing\n```\n",
        "```console\n$ cotal up \\\n```\n",
        "```console\n$ false # exit x\n```\n",
        "```console\n$ serve # stays\n```\n",
    ] {
        assert!(Page::parse(text).is_err(), "{text}");
    }
}

#[test]
fn expectations_are_met_in_their_order() {
    let typed = |prints: &[&str]| Typed {
        line: 1,
        command: String::new(),
        exit: 0,
        stays: false,
        prints: prints.iter().map(|&print| print.to_owned()).collect(),
    };
    assert_eq!(typed(&["a", "b"]).missing("xa\nby\n"), None);
    assert_eq!(typed(&["b", "a"]).missing("xa\nby\n"), Some("a"));
    assert_eq!(typed(&["a...c...e"]).missing("abcde\n"), None);
    assert_eq!(typed(&["a...c...b"]).missing("abcde\n"), Some("a...c...b"));
}
