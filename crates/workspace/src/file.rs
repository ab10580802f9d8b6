//! Whole-or-absent files: 0600 in 0700 directories, written by temp and rename, read without following a symlink.
//!
//! A file is reached through a handle on its directory, and that directory is opened without following a symlink, so
//! that neither can be exchanged between a check and its use. Directories above it are the caller's to vouch for:
//! [`crate::root`] and [`crate::secret_store`] check each one below a workspace root.

use std::{
    ffi::OsString,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::{
    fd::OwnedFd,
    fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat},
    io::Errno,
    process::{Pid, test_kill_process},
};
use zeroize::Zeroizing;

/// Directories that hold secrets: theirs alone.
const DIR_MODE: Mode = Mode::RWXU;
/// Files that hold secrets.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Files that others wait for and that hold none.
const READABLE_MODE: Mode = FILE_MODE.union(Mode::RGRP).union(Mode::ROTH);
/// Nothing of this contract comes near; a longer file is not read at all.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// How many temp names are tried before a directory that holds them all is given up.
const TEMP_ATTEMPTS: u128 = 1024;

/// Disk work off the runtime's threads: a disk that hangs, or an fsync, must hold up nobody else. It runs to its end when
/// nobody waits for it any more.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| io::Error::other("the disk work was abandoned"))
}

/// Creates a directory (and its parents) with mode 0700; an existing symlink or non-directory refuses. A directory
/// that is open to others is closed to them before a secret lands in it (contract 08 §2.1).
pub fn ensure_private_dir(dir: &Path) -> io::Result<()> {
    make_dir(dir)?;
    let handle = open_dir(dir)?;
    let stat = fs::fstat(&handle)?;
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
        fs::fchmod(&handle, DIR_MODE).map_err(|e| context(dir, "cannot be closed to other users", e))?;
    }
    Ok(())
}

/// Creates a directory (and its parents) with mode 0700; an existing one keeps its mode, and refuses when somebody else
/// may write there.
pub fn ensure_dir_closed_to_writers(dir: &Path) -> io::Result<()> {
    make_dir(dir)?;
    let stat = fs::fstat(open_dir(dir)?)?;
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(refuse(
            dir,
            "can be written by other users: `chmod go-w` it, or choose another directory",
        ));
    }
    Ok(())
}

/// Opens a lock file, 0600 and never through a symlink or into a file that has another name too.
pub fn open_lock(path: &Path) -> io::Result<OwnedFd> {
    let (handle, stat) =
        open_regular(path, OFlags::WRONLY | OFlags::CREATE)?.ok_or_else(|| absent_parent(path))?;
    refuse_other_names(path, &stat)?;
    Ok(handle)
}

/// Opens a log to append to, 0600 when it is made, by the rules of [`open_lock`].
pub fn open_append(path: &Path) -> io::Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let (handle, stat) = open_regular(path, flags)?.ok_or_else(|| absent_parent(path))?;
    refuse_other_names(path, &stat)?;
    // It was for the open alone; a program that inherits the handle writes as to any file.
    fs::fcntl_setfl(&handle, OFlags::APPEND)?;
    Ok(handle.into())
}

/// Reads the last bytes of a log, `limit` at most, by the rules of [`open_lock`]. `None` only when absent.
pub fn read_tail(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let Some((handle, stat)) = open_regular(path, OFlags::RDONLY)? else { return Ok(None) };
    refuse_other_names(path, &stat)?;
    let length = u64::try_from(stat.st_size).unwrap_or_default();
    let mut file = std::fs::File::from(handle);
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut tail = Vec::new();
    file.take(limit).read_to_end(&mut tail)?;
    Ok(Some(tail))
}

/// Reads a regular file, refusing symlinks and everything that is not a regular file. `None` only when absent.
pub fn read_regular(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let Some((handle, stat)) = open_regular(path, OFlags::RDONLY)? else { return Ok(None) };
    // Sized at once: a growing buffer would leave copies of a secret behind.
    let length = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    let capacity =
        usize::try_from(length).ok().filter(|_| length <= MAX_FILE_BYTES).ok_or_else(|| too_long(path))?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity + 1));
    std::fs::File::from(handle).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(too_long(path));
    }
    Ok(Some(bytes))
}

/// Reads a regular file as UTF-8 text, by the rules of [`read_regular`].
pub fn read_text(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let Some(bytes) = read_regular(path)? else { return Ok(None) };
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(_) => Err(refuse(path, "is not UTF-8 text")),
    }
}

/// Replaces a file atomically: a 0600 sibling, fsync, rename; the sibling is removed on failure. A symlink or another
/// thing that is no regular file refuses and stays.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, FILE_MODE)
}

/// As [`write_atomic`], for a file that holds no secret and that any user may read: 0644.
pub fn write_atomic_readable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, READABLE_MODE)
}

fn replace(path: &Path, bytes: &[u8], mode: Mode) -> io::Result<()> {
    let (dir, name) = open_parent(path)?.ok_or_else(|| absent_parent(path))?;
    match fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
        Ok(_) => return Err(not_regular(path)),
        Err(Errno::NOENT) => {}
        Err(e) => return Err(context(path, "cannot be examined", e)),
    }
    let temp = Temp::write(&dir, &name, bytes, mode)?;
    fs::renameat(&dir, &temp.name, &dir, &name).map_err(|e| context(path, "cannot be replaced", e))?;
    temp.gone();
    fs::fsync(&dir)?;
    Ok(())
}

/// Creates a file that did not exist, whole or not at all; `false` when it exists (untouched).
pub fn create_exclusive(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let (dir, name) = open_parent(path)?.ok_or_else(|| absent_parent(path))?;
    let temp = Temp::write(&dir, &name, bytes, FILE_MODE)?;
    // A hard link is the one step that both carries the whole content and fails when the name is taken.
    let created = match fs::linkat(&dir, &temp.name, &dir, &name, AtFlags::empty()) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(context(path, "cannot be created", e)),
    };
    drop(temp);
    fs::fsync(&dir)?;
    Ok(created)
}

/// Removes a file; `false` when it was absent. A symlink is removed itself, never what it names.
pub fn remove_if_present(path: &Path) -> io::Result<bool> {
    let Some((dir, name)) = open_parent(path)? else { return Ok(false) };
    match fs::unlinkat(&dir, &name, AtFlags::empty()) {
        Ok(()) => {
            fs::fsync(&dir)?;
            Ok(true)
        }
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(context(path, "cannot be removed", e)),
    }
}

/// Removes the temporary siblings that writers left in a directory when they were killed: those of a process that is no
/// more. An absent directory has none.
pub fn remove_left_siblings(dir: &Path) -> io::Result<()> {
    let handle = match open_dir(dir) {
        Ok(handle) => handle,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in fs::Dir::read_from(&handle)? {
        let entry = entry?;
        if entry.file_name().to_str().ok().and_then(writer_of).is_some_and(has_ended) {
            match fs::unlinkat(&handle, entry.file_name(), AtFlags::empty()) {
                // A directory of such a name is nobody's sibling.
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => {}
                Err(e) => return Err(context(dir, "has a left *.tmp file that cannot be removed", e)),
            }
        }
    }
    Ok(())
}

/// The process that a temporary sibling's name tells of (see [`Temp`]).
fn writer_of(name: &str) -> Option<Pid> {
    let (rest, millis) = name.strip_suffix(".tmp")?.rsplit_once('.')?;
    let (target, pid) = rest.rsplit_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if target.is_empty() || !digits(pid) || !digits(millis) {
        return None;
    }
    Pid::from_raw(pid.parse().ok()?)
}

fn has_ended(pid: Pid) -> bool {
    test_kill_process(pid) == Err(Errno::SRCH)
}

/// Whether the path is a real directory: absent is `false`, a symlink or another type is an error.
pub fn is_real_dir(path: &Path) -> io::Result<bool> {
    match kind(path)? {
        None => Ok(false),
        Some(FileType::Directory) => Ok(true),
        Some(_) => Err(not_directory(path)),
    }
}

/// Whether the path is a regular file: absent is `false`, a symlink or another type is an error.
pub fn is_regular(path: &Path) -> io::Result<bool> {
    match kind(path)? {
        None => Ok(false),
        Some(FileType::RegularFile) => Ok(true),
        Some(_) => Err(not_regular(path)),
    }
}

/// What lies at a path, its own symlink not followed. Only ENOENT is absence (contract 08 §2.1).
fn kind(path: &Path) -> io::Result<Option<FileType>> {
    match fs::lstat(path) {
        Ok(stat) => {
            refuse_foreign(path, &stat)?;
            Ok(Some(FileType::from_raw_mode(stat.st_mode)))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(context(path, "cannot be examined", e)),
    }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::mkdir(dir, DIR_MODE) {
        Ok(()) => match parent_of(dir) {
            Some(parent) => {
                Ok(fs::fsync(fs::open(parent, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?)
            }
            None => Ok(()),
        },
        Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOENT) if parent_of(dir).is_some_and(|p| p != dir) => {
            make_dir(&parent_of(dir).unwrap_or_default())?;
            match fs::mkdir(dir, DIR_MODE) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(context(dir, "cannot be created", e)),
            }
        }
        Err(e) => Err(context(dir, "cannot be created", e)),
    }
}

/// The directory that a path lies in; `.` for a bare name.
fn parent_of(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() })
}

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = match fs::openat(CWD, dir, flags, Mode::empty()) {
        Ok(handle) => handle,
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(not_directory(dir)),
        Err(e) => return Err(context(dir, "cannot be opened", e)),
    };
    refuse_foreign(dir, &fs::fstat(&handle)?)?;
    Ok(handle)
}

/// A handle on a regular file and what it is; `None` when the file, or its directory, is absent.
fn open_regular(path: &Path, flags: OFlags) -> io::Result<Option<(OwnedFd, Stat)>> {
    let Some((dir, name)) = open_parent(path)? else { return Ok(None) };
    // Without NONBLOCK a named pipe would hold the open until somebody comes to its other end.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = match fs::openat(&dir, &name, flags, FILE_MODE) {
        Ok(handle) => handle,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(not_regular(path)),
        Err(e) => return Err(context(path, "cannot be opened", e)),
    };
    let stat = fs::fstat(&handle)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_regular(path));
    }
    refuse_foreign(path, &stat)?;
    Ok(Some((handle, stat)))
}

/// Whoever owns a directory or a file can put another in its place, whatever its mode says.
fn refuse_foreign(path: &Path, stat: &Stat) -> io::Result<()> {
    let this = rustix::process::geteuid().as_raw();
    if is_trusted_owner(stat.st_uid, this) {
        return Ok(());
    }
    Err(refuse(
        path,
        &format!(
            "belongs to user {}, who is neither root nor the user of this process ({this}): `chown` it, or run this as \
             its owner",
            stat.st_uid
        ),
    ))
}

const fn is_trusted_owner(owner: u32, this: u32) -> bool {
    owner == 0 || owner == this
}

/// What is written to a file with a second name lands in somebody else's file.
fn refuse_other_names(path: &Path, stat: &Stat) -> io::Result<()> {
    if stat.st_nlink == 1 {
        return Ok(());
    }
    Err(refuse(path, "has another name too (a hard link), or none any more: remove it, it is made anew"))
}

/// A handle on a path's directory and the name in it; `None` when the directory is absent.
fn open_parent(path: &Path) -> io::Result<Option<(OwnedFd, OsString)>> {
    let name = path.file_name().ok_or_else(|| refuse(path, "names no file"))?.to_owned();
    let parent = parent_of(path).ok_or_else(|| refuse(path, "names no file"))?;
    match open_dir(&parent) {
        Ok(handle) => Ok(Some((handle, name))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// A sibling `<name>.<pid>.<epoch ms>.tmp`, removed on drop unless it has become the file.
struct Temp<'a> {
    dir: &'a OwnedFd,
    name: OsString,
    live: bool,
}

impl<'a> Temp<'a> {
    fn write(dir: &'a OwnedFd, target: &OsString, bytes: &[u8], mode: Mode) -> io::Result<Self> {
        let (handle, name) = Self::open(dir, target)?;
        let temp = Self { dir, name, live: true };
        if mode != FILE_MODE {
            // Whatever the umask leaves of a mode that is asked for at the open.
            fs::fchmod(&handle, mode)?;
        }
        let mut file = std::fs::File::from(handle);
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(temp)
    }

    fn open(dir: &OwnedFd, target: &OsString) -> io::Result<(OwnedFd, OsString)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Two writers of one millisecond take the next free one.
        for attempt in 0..TEMP_ATTEMPTS {
            let mut name = target.clone();
            name.push(format!(".{}.{}.tmp", std::process::id(), now + attempt));
            match fs::openat(dir, &name, flags, FILE_MODE) {
                Ok(handle) => return Ok((handle, name)),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(context(Path::new(&name), "cannot be created", e)),
            }
        }
        Err(refuse(
            Path::new(target),
            "has too many temporary siblings; remove the stale *.tmp files beside it",
        ))
    }

    fn gone(mut self) {
        self.live = false;
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if self.live {
            // Nothing more can be done about a sibling that will not go; the failure that led here is the one told.
            let _ = fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

fn refuse(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} {what}", path.display()))
}

fn context(path: &Path, what: &str, errno: Errno) -> io::Error {
    let cause = io::Error::from(errno);
    io::Error::new(cause.kind(), format!("{} {what}: {cause}", path.display()))
}

fn not_regular(path: &Path) -> io::Error {
    refuse(path, "is not a regular file (symlinks are not followed)")
}

fn not_directory(path: &Path) -> io::Error {
    refuse(path, "is not a directory (symlinks are not followed)")
}

fn too_long(path: &Path) -> io::Error {
    refuse(path, "is too long to be one of this program's files")
}

fn absent_parent(path: &Path) -> io::Error {
    let parent = parent_of(path).unwrap_or_default();
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", parent.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_nothing_else() {
        let tmp = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let left = format!("a.creds.{}.1700000000000.tmp", ended.id());
        let written = format!("a.creds.{}.1700000000000.tmp", std::process::id());
        let others = ["a.creds", "a.tmp", "a.x.1.tmp", ".4194305.1.tmp", "a.4194305.tmp", "a.4194305.-1.tmp"];
        for name in others.iter().copied().chain([left.as_str(), written.as_str()]) {
            std::fs::write(tmp.path().join(name), "").unwrap();
        }
        std::fs::create_dir(tmp.path().join("d.4194305.1.tmp")).unwrap();
        remove_left_siblings(tmp.path()).unwrap();
        let mut kept: Vec<_> = others.into_iter().chain([written.as_str(), "d.4194305.1.tmp"]).collect();
        kept.sort_unstable();
        assert_eq!(names(tmp.path()), kept);
        remove_left_siblings(&tmp.path().join("absent")).unwrap();
    }

    #[test]
    fn a_written_file_is_0600_in_0700_directories_and_leaves_no_sibling() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("a/b");
        ensure_private_dir(&dir).unwrap();
        let file = dir.join("f");
        write_atomic(&file, b"one").unwrap();
        write_atomic(&file, b"two").unwrap();
        assert_eq!(read_regular(&file).unwrap().unwrap().as_slice(), b"two");
        assert_eq!((mode(&tmp.path().join("a")), mode(&dir), mode(&file)), (0o700, 0o700, 0o600));
        assert_eq!(names(&dir), ["f"]);
    }

    #[test]
    fn a_file_for_everybody_is_0644_also_where_a_private_one_was() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("f");
        write_atomic(&file, b"one").unwrap();
        write_atomic_readable(&file, b"two").unwrap();
        assert_eq!((std::fs::read(&file).unwrap().as_slice(), mode(&file)), (&b"two"[..], 0o644));
        write_atomic(&file, b"three").unwrap();
        assert_eq!((mode(&file), names(tmp.path())), (0o600, vec!["f".to_owned()]));
    }

    #[test]
    fn a_directory_that_is_open_to_others_is_closed() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("d");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        ensure_private_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
    }

    #[test]
    fn a_pipe_or_a_file_with_a_second_name_is_no_log_and_no_lock_and_nobody_waits_for_it() {
        let tmp = tempfile::tempdir().unwrap();
        let (pipe, twice, log) = (tmp.path().join("pipe"), tmp.path().join("twice"), tmp.path().join("log"));
        fs::mknodat(CWD, &pipe, FileType::Fifo, FILE_MODE, 0).unwrap();
        std::fs::write(tmp.path().join("theirs"), b"theirs").unwrap();
        std::fs::hard_link(tmp.path().join("theirs"), &twice).unwrap();
        for path in [&pipe, &twice, &tmp.path().to_owned()] {
            assert!(open_append(path).is_err() && open_lock(path).is_err() && read_tail(path, 9).is_err());
        }
        assert_eq!(std::fs::read(&twice).unwrap(), b"theirs");
        assert_eq!(read_tail(&log, 9).unwrap(), None);
        open_append(&log).unwrap().write_all(b"one").unwrap();
        open_append(&log).unwrap().write_all(b"two").unwrap();
        assert_eq!((read_tail(&log, 4).unwrap().unwrap().as_slice(), mode(&log)), (&b"etwo"[..], 0o600));
    }

    #[test]
    fn what_belongs_to_another_user_is_refused_and_roots_is_not() {
        assert!(is_trusted_owner(0, 1000) && is_trusted_owner(1000, 1000) && is_trusted_owner(0, 0));
        assert!(!is_trusted_owner(1000, 0) && !is_trusted_owner(1001, 1000));
        let tmp = tempfile::tempdir().unwrap();
        let (dir, file) = (tmp.path().join("d"), tmp.path().join("f"));
        ensure_private_dir(&dir).unwrap();
        write_atomic(&file, b"x").unwrap();
        // Only root can give a file away.
        if std::os::unix::fs::chown(&file, Some(65534), None).is_err() {
            return;
        }
        std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
        let told = read_regular(&file).unwrap_err().to_string();
        assert!(told.contains("belongs to user 65534"), "{told}");
        assert!(is_regular(&file).is_err() && open_append(&file).is_err() && open_lock(&file).is_err());
        assert!(ensure_private_dir(&dir).is_err() && ensure_dir_closed_to_writers(&dir).is_err());
        assert!(is_real_dir(&dir).is_err() && write_atomic(&dir.join("g"), b"x").is_err());
        assert!(read_regular(&dir.join("g")).is_err() && create_exclusive(&dir.join("g"), b"x").is_err());
    }

    #[test]
    fn create_exclusive_leaves_what_exists_untouched() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("f");
        assert!(create_exclusive(&file, b"first").unwrap());
        assert!(!create_exclusive(&file, b"second").unwrap());
        assert_eq!(read_regular(&file).unwrap().unwrap().as_slice(), b"first");
        assert_eq!(mode(&file), 0o600);
        assert_eq!(names(tmp.path()), ["f"]);
    }

    #[test]
    fn of_many_concurrent_creators_exactly_one_wins_and_every_reader_sees_its_whole_bytes() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("f");
        let wins: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8u8)
                .map(|i| {
                    let file = &file;
                    scope.spawn(move || {
                        let won = create_exclusive(file, &vec![i; 100_000]).unwrap();
                        let seen = read_regular(file).unwrap().unwrap();
                        assert_eq!(seen.len(), 100_000);
                        assert!(seen.iter().all(|&b| b == seen[0]) && (!won || seen[0] == i));
                        won
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(wins.iter().filter(|&&won| won).count(), 1);
        assert_eq!(names(tmp.path()), ["f"]);
    }

    #[test]
    fn a_symlinked_file_is_neither_read_nor_written_nor_created_through() {
        let tmp = tempfile::tempdir().unwrap();
        let (target, link) = (tmp.path().join("target"), tmp.path().join("link"));
        std::fs::write(&target, "untouched").unwrap();
        symlink(&target, &link).unwrap();
        assert_eq!(read_regular(&link).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(write_atomic(&link, b"x").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(!create_exclusive(&link, b"x").unwrap());
        assert!(is_regular(&link).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"untouched");
        assert!(remove_if_present(&link).unwrap());
        assert!(target.exists());
    }

    #[test]
    fn a_dangling_symlink_is_not_absence() {
        let tmp = tempfile::tempdir().unwrap();
        let link = tmp.path().join("link");
        symlink(tmp.path().join("nowhere"), &link).unwrap();
        assert!(read_regular(&link).is_err());
        assert!(is_real_dir(&link).is_err());
        assert!(!create_exclusive(&link, b"x").unwrap());
    }

    #[test]
    fn a_symlinked_directory_is_refused_by_every_operation() {
        let tmp = tempfile::tempdir().unwrap();
        let (real, link) = (tmp.path().join("real"), tmp.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::fs::write(real.join("f"), "x").unwrap();
        symlink(&real, &link).unwrap();
        let file = link.join("f");
        assert!(ensure_private_dir(&link).is_err());
        assert!(is_real_dir(&link).is_err());
        assert!(read_regular(&file).is_err());
        assert!(write_atomic(&file, b"y").is_err());
        assert!(create_exclusive(&link.join("g"), b"y").is_err());
        assert!(remove_if_present(&file).is_err());
        assert_eq!(names(&real), ["f"]);
        assert_eq!(std::fs::read(real.join("f")).unwrap(), b"x");
    }

    #[test]
    fn a_directory_or_a_pipe_in_place_of_a_file_is_refused_at_once() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("d");
        std::fs::create_dir(&dir).unwrap();
        assert!(read_regular(&dir).is_err());
        assert!(write_atomic(&dir, b"x").is_err());
        let pipe = tmp.path().join("p");
        fs::mknodat(CWD, &pipe, FileType::Fifo, FILE_MODE, 0).unwrap();
        assert!(read_regular(&pipe).is_err());
    }

    #[test]
    fn only_a_missing_entry_is_absence() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("f");
        assert!(read_regular(&tmp.path().join("no/where")).unwrap().is_none());
        assert!(!remove_if_present(&file).unwrap());
        assert!(!is_real_dir(&file).unwrap());
        assert_eq!(
            write_atomic(&tmp.path().join("no/where"), b"").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::write(&file, "x").unwrap();
        assert!(read_regular(&file.join("under-a-file")).is_err());
        assert!(is_real_dir(&file).is_err());
    }

    #[test]
    fn a_file_beyond_the_bound_is_refused_unread() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("f");
        std::fs::File::create(&file).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read_regular(&file).unwrap_err().to_string().contains("too long"));
    }
}
