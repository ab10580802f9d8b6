//! A log file that grows, is cut short and is replaced, read line by line.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

/// The longest line that is kept; what follows on it is passed over.
const MAX_LINE: usize = 64 * 1024;
/// How much of the file's end a first look may read.
const FIRST_LOOK: u64 = 1024 * 1024;
/// How much one look reads, so that a log that is written without pause is told as it grows.
const STRETCH: u64 = 1024 * 1024;

/// One log, from where it was when it was opened.
pub(super) struct Follow {
    path: PathBuf,
    open: Option<Open>,
    line: Line,
}

struct Open {
    file: File,
    /// Device and inode: a file of the same name may be another one.
    identity: (u64, u64),
    at: u64,
    /// The last read was as long as one may be.
    full: bool,
}

/// The line that is being read.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    /// It has grown too long: the rest of it is passed over.
    long: bool,
}

impl Follow {
    /// Begins at the end of the file, after its last `before` lines, which come first. A file that is not there yet is
    /// waited for.
    pub(super) fn open(path: &Path, before: usize) -> io::Result<(Self, Vec<String>)> {
        let mut follow = Self { path: path.to_owned(), open: None, line: Line::default() };
        let Some(mut open) = Open::of(path)? else { return Ok((follow, Vec::new())) };
        let length = open.file.metadata()?.len();
        open.seek(length.saturating_sub(FIRST_LOOK))?;
        let cut = open.at > 0;
        let mut lines = Vec::new();
        while open.at < length {
            let read = open.read(&mut follow.line, &mut lines)?;
            if read == 0 {
                break;
            }
        }
        if cut && !lines.is_empty() {
            // The first one was cut in its middle.
            lines.remove(0);
        }
        lines.drain(..lines.len().saturating_sub(before));
        follow.open = Some(open);
        Ok((follow, lines))
    }

    /// Whether the last look ended with a full stretch: the next one need not be waited for.
    pub(super) fn is_behind(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.full)
    }

    /// The lines that came since the last look.
    pub(super) fn look(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        if let Some(open) = &mut self.open {
            if open.file.metadata()?.len() < open.at {
                // Cut short in place: what stands there now is new.
                open.seek(0)?;
                self.line = Line::default();
            }
            if open.read(&mut self.line, &mut lines)? > 0 {
                return Ok(lines);
            }
            // Read to its end. Whether another file has its name by now is asked only then: nothing of it is lost.
            let stands = std::fs::metadata(&self.path).ok().map(|meta| (meta.dev(), meta.ino()));
            if stands.is_none_or(|identity| identity == open.identity) {
                return Ok(lines);
            }
        }
        if let Some(mut open) = Open::of(&self.path)? {
            self.line = Line::default();
            open.read(&mut self.line, &mut lines)?;
            self.open = Some(open);
        }
        Ok(lines)
    }
}

impl Open {
    /// `None` when there is none. Opened without waiting: a pipe of that name must not hold the command up.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(path, flags, Mode::empty()) {
            Ok(handle) => File::from(handle),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(io::Error::from(errno)),
        };
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(Some(Self { file, identity: (meta.dev(), meta.ino()), at: 0, full: false }))
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        self.at = self.file.seek(SeekFrom::Start(to))?;
        Ok(())
    }

    /// Reads on, up to a stretch; answers how many bytes there were.
    fn read(&mut self, line: &mut Line, lines: &mut Vec<String>) -> io::Result<usize> {
        let mut bytes = Vec::new();
        let read = (&self.file).take(STRETCH).read_to_end(&mut bytes)?;
        self.at += read as u64;
        self.full = read as u64 == STRETCH;
        line.feed(&bytes, lines);
        Ok(read)
    }
}

impl Line {
    fn feed(&mut self, bytes: &[u8], lines: &mut Vec<String>) {
        for &byte in bytes {
            if byte == b'\n' {
                if !self.long {
                    lines.push(String::from_utf8_lossy(&self.bytes).into_owned());
                }
                *self = Self::default();
            } else if self.bytes.len() < MAX_LINE {
                self.bytes.push(byte);
            } else {
                self.long = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn it_begins_after_the_last_lines_and_tells_whole_lines_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, "one\ntwo\nthree\nfo");
        let (mut follow, before) = Follow::open(&path, 2).unwrap();
        assert_eq!(before, ["two", "three"]);
        assert!(follow.look().unwrap().is_empty());
        append(&path, "ur\nfive\n");
        assert_eq!(follow.look().unwrap(), ["four", "five"]);
    }

    #[test]
    fn a_file_that_is_not_there_yet_is_read_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (mut follow, before) = Follow::open(&path, 10).unwrap();
        assert!(before.is_empty() && follow.look().unwrap().is_empty());
        append(&path, "one\n");
        assert_eq!(follow.look().unwrap(), ["one"]);
    }

    #[test]
    fn a_file_that_is_cut_short_or_replaced_is_read_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, "one\ntwo and a half");
        let (mut follow, _) = Follow::open(&path, 0).unwrap();
        fs::write(&path, "cut\n").unwrap();
        assert_eq!(follow.look().unwrap(), ["cut"]);

        // The last words of the old file are told before the first of the new one.
        fs::rename(&path, dir.path().join("log.1")).unwrap();
        append(&dir.path().join("log.1"), "last words\n");
        append(&path, "first words\n");
        assert_eq!(follow.look().unwrap(), ["last words"]);
        assert_eq!(follow.look().unwrap(), ["first words"]);

        fs::remove_file(&path).unwrap();
        assert!(follow.look().unwrap().is_empty());
        append(&path, "again\n");
        assert_eq!(follow.look().unwrap(), ["again"]);
    }

    #[test]
    fn a_line_without_end_fills_no_memory_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, "");
        let (mut follow, _) = Follow::open(&path, 0).unwrap();
        append(&path, &"x".repeat(3 * MAX_LINE));
        assert!(follow.look().unwrap().is_empty());
        assert!(follow.line.bytes.len() <= MAX_LINE);
        append(&path, "\nnext\n\u{fffd}\n");
        assert_eq!(follow.look().unwrap(), ["next", "\u{fffd}"]);
    }

    #[test]
    fn a_full_stretch_is_followed_by_the_next_one_without_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, "");
        let (mut follow, _) = Follow::open(&path, 0).unwrap();
        assert!(!follow.is_behind());
        let lines = usize::try_from(STRETCH).unwrap() / 8 + 1;
        append(&path, &"1234567\n".repeat(lines));
        assert_eq!((follow.look().unwrap().len(), follow.is_behind()), (lines - 1, true));
        assert_eq!((follow.look().unwrap().len(), follow.is_behind()), (1, false));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from(0o600), 0)
            .unwrap();
        assert!(Follow::open(&pipe, 0).is_err());
        assert!(Follow::open(dir.path(), 0).is_err());
    }
}
