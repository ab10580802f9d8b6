//! `cotal login` and `cotal logout`: the session of this machine at an IdP (contract 04 §11.1, §13).

use std::time::Duration;

use cotal_ledger::shell_quote;
use cotal_wire::{Clock, UnixMillis, UnixSecs};
use cotal_workspace::root::Home;
use serde_json::json;

use crate::{
    actor::NARROW,
    cli::Output,
    context::Context,
    given_url::GivenUrl,
    idp_client::{DeviceCode, IdpClient, NewSession, Poll},
    outcome::CliError,
    progress::if_slow,
    session_cache::{CachedSession, SessionCache},
    terminal::{escaped, printable},
};

/// The actor that a person's own commands act as (contract 04 §13).
pub const HUMAN_ACTOR: &str = "cli";

/// `cotal login`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal login --idp https://id.example/api/auth")]
pub struct LoginArgs {
    /// The IdP's auth base URL.
    #[arg(long, value_name = "URL")]
    pub idp: GivenUrl,
    /// The device client id.
    #[arg(long, value_name = "ID", default_value = "cotal-cli")]
    pub client_id: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal logout`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal logout --idp https://id.example/api/auth")]
pub struct LogoutArgs {
    /// The IdP's auth base URL.
    #[arg(long, value_name = "URL")]
    pub idp: GivenUrl,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// What this machine remembers of a login, without the session itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedLogin {
    /// The subject.
    pub sub: Option<String>,
    /// When the session ends, as the IdP said; advisory.
    pub expires_at: UnixSecs,
}

/// The cached login at a normalised IdP URL, offline; `None` when nobody is logged in there.
pub fn cached_login(home: &Home, idp_url: &str) -> Result<Option<CachedLogin>, CliError> {
    let session = SessionCache::of(home).get(idp_url)?;
    Ok(session.map(|session| CachedLogin { sub: session.sub, expires_at: session.expires_at }))
}

/// Signs in: a device code, a person's approval, a proof that the session mints tokens, and only then the cache.
pub async fn run(args: LoginArgs, ctx: &Context) -> Result<(), CliError> {
    let idp = IdpClient::new(&args.idp, ctx)?;
    let code = if_slow(ctx, &idp.waits(), idp.start_device(&args.client_id)).await?;
    prompt(&code, ctx)?;
    let session = approved(&idp, code, &args.client_id, ctx.clock.as_ref(), tokio::time::sleep).await?;
    let proof = if_slow(ctx, &idp.waits(), idp.prove(&session.token)).await?;
    let login = CachedSession {
        token: session.token,
        expires_at: ends(ctx.clock.now_secs(), session.expires_in_secs),
        sub: Some(proof.sub.clone()),
    };
    let cache = SessionCache::of(&ctx.home);
    cache.put(idp.base(), &login)?;
    let grant = grant_line(&proof.sub);
    let document = json!({
        "idp": idp.base(),
        "sub": proof.sub,
        "label": proof.label,
        "home": ctx.home.path(),
        "expiresAt": login.expires_at,
        "grant": grant,
    });
    ctx.report(&document, || {
        let label = proof.label.as_deref().unwrap_or(&proof.sub);
        format!(
            "Logged in at {}\n  as       {}\n  subject  {}\n  cached   {}\n  until    {}\n\
             To be let into a space, ask its operator to run, with the lists that fit (and --space <name> unless it is main):\n  {grant}",
            idp.base(),
            printable(label),
            escaped(&proof.sub).unwrap_or_else(|| proof.sub.clone()),
            cache.path().display(),
            day_and_time(login.expires_at),
        )
    })
}

/// What an operator runs to let the subject in. One that a terminal cannot show is named as JSON, in brackets that a
/// shell does not run: pasted, the line must not grant another subject.
fn grant_line(sub: &str) -> String {
    let sub = escaped(sub).map_or_else(|| shell_quote(sub), |json| format!("<the subject {json}>"));
    format!("cotal actor grant {HUMAN_ACTOR} --sub {sub} {NARROW}")
}

/// Signs out: the IdP first, so that a session which could not be revoked is not forgotten.
pub async fn logout(args: LogoutArgs, ctx: &Context) -> Result<(), CliError> {
    let idp = IdpClient::new(&args.idp, ctx)?;
    let cache = SessionCache::of(&ctx.home);
    let Some(session) = cache.get(idp.base())? else {
        let document = json!({ "idp": idp.base(), "loggedOut": false });
        return ctx.report(&document, || format!("No session at {}: nothing to do", idp.base()));
    };
    if_slow(ctx, &idp.waits(), idp.sign_out(&session.token)).await?;
    cache.remove(idp.base())?;
    let document = json!({ "idp": idp.base(), "loggedOut": true });
    ctx.report(&document, || format!("Logged out at {}", idp.base()))
}

/// Tells the person where to go, once. With `--json` on stderr: stdout is the document's.
fn prompt(code: &DeviceCode, ctx: &Context) -> Result<(), CliError> {
    let text = format!(
        "Open {}\nand approve the code {} (or type it at {}); it is good for {}",
        code.verification_uri_complete,
        code.user_code,
        code.verification_uri,
        lasting(code.expires_in_secs)
    );
    if ctx.json {
        ctx.note(text);
        return Ok(());
    }
    ctx.say(text)
}

/// Polls until somebody decides: waits first, then looks at the deadline, then asks.
async fn approved(
    idp: &IdpClient,
    mut code: DeviceCode,
    client_id: &str,
    clock: &dyn Clock,
    sleep: impl AsyncFn(Duration),
) -> Result<NewSession, CliError> {
    let deadline = later(clock.now_millis(), code.expires_in_secs);
    loop {
        sleep(Duration::from_secs_f64(code.interval_secs)).await;
        if clock.now_millis() > deadline {
            return Err(idp.expired());
        }
        match idp.poll(&code, client_id).await? {
            Poll::Pending => {}
            Poll::SlowDown => code.slow_down(),
            Poll::Session(session) => return Ok(session),
        }
    }
}

/// How long a code is good, in whole minutes from two of them on.
fn lasting(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} seconds")
    } else {
        format!("{:.0} minutes", (seconds / 60.0).floor())
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a year of milliseconds")]
fn later(now: UnixMillis, seconds: f64) -> UnixMillis {
    now.plus((seconds * 1000.0) as u64)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a year of seconds")]
fn ends(now: UnixSecs, seconds: f64) -> UnixSecs {
    now.plus(seconds as u64)
}

/// `2026-01-02T03:04:05Z`.
fn day_and_time(at: UnixSecs) -> String {
    let at = i64::try_from(at.0).ok().and_then(|secs| jiff::Timestamp::from_second(secs).ok());
    at.map_or_else(|| "an unknown date".to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
    };

    use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::any};
    use cotal_workspace::root::Root;
    use parking_lot::Mutex;
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    type Script = Arc<Mutex<Vec<(u16, String)>>>;
    type Asked = Arc<Mutex<Vec<String>>>;

    /// An IdP that answers its requests one after the other from a script.
    struct Scripted {
        base: String,
        asked: Asked,
        home: TempDir,
        out: Captured,
    }

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Captured {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    async fn answer(
        State((script, asked)): State<(Script, Asked)>,
        uri: axum::http::Uri,
        body: Bytes,
    ) -> (StatusCode, String) {
        asked.lock().push(format!("{} {}", uri.path(), String::from_utf8_lossy(&body)));
        let mut script = script.lock();
        let (status, body) = if script.is_empty() { (599, String::new()) } else { script.remove(0) };
        (StatusCode::from_u16(status).unwrap(), body)
    }

    impl Scripted {
        async fn new(answers: &[(u16, Value)]) -> Self {
            let script = answers.iter().map(|(status, body)| (*status, body.to_string())).collect();
            let (script, asked): (Script, Asked) = (Arc::new(Mutex::new(script)), Asked::default());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let base = format!("http://{}/api/auth", listener.local_addr().unwrap());
            let app = Router::new().fallback(any(answer)).with_state((script, asked.clone()));
            tokio::spawn(async move { axum::serve(listener, app).await });
            Self { base, asked, home: tempfile::tempdir().unwrap(), out: Captured::default() }
        }

        fn context(&self) -> Context {
            let home = Home::at(self.home.path().join("home"));
            let root = Root::at(self.home.path());
            Context::of_parts(home, root, PathBuf::new(), |_| None, self.out.clone(), self.out.clone())
        }

        fn client(&self) -> IdpClient {
            IdpClient::new(&self.base, &self.context()).unwrap()
        }

        fn args(&self) -> LoginArgs {
            LoginArgs {
                idp: self.base.clone().into(),
                client_id: "cotal-cli".into(),
                output: Output::default(),
            }
        }

        fn cached(&self) -> bool {
            self.home.path().join("home/idp-sessions.json").exists()
        }
    }

    #[test]
    fn a_subject_that_cannot_be_shown_is_never_pasted_as_another_one() {
        let of = |sub: &str| format!("cotal actor grant cli --sub {sub} {NARROW}");
        assert_eq!(grant_line("it's"), of(r"'it'\''s'"));
        assert_eq!(grant_line("a\u{1b}b"), of(r#"<the subject "a\u001bb">"#));
    }

    #[test]
    fn a_prompt_says_how_long_the_code_is_good() {
        for (seconds, told) in
            [(1.0, "1 seconds"), (60.0, "60 seconds"), (600.0, "10 minutes"), (659.9, "10 minutes")]
        {
            assert_eq!(lasting(seconds), told);
        }
    }

    fn code() -> Value {
        json!({
            "device_code": "d", "user_code": "ABCD", "verification_uri": "https://id/device",
            "verification_uri_complete": "https://id/device?user_code=ABCD", "expires_in": 60, "interval": 1,
        })
    }

    fn pending(error: &str) -> (u16, Value) {
        (400, json!({ "error": error }))
    }

    fn session() -> (u16, Value) {
        (200, json!({ "access_token": "opaque", "expires_in": 3600 }))
    }

    /// A clock that the sleeps of the flow move.
    #[derive(Default)]
    struct Slept(AtomicU64, Mutex<Vec<f64>>);

    impl Clock for Slept {
        fn now_millis(&self) -> UnixMillis {
            UnixMillis(self.0.load(Ordering::Relaxed))
        }
    }

    /// Polls against a script without waiting; how long each wait was meant to be.
    async fn poll(idp: &Scripted, clock: &Slept) -> Result<NewSession, CliError> {
        let client = idp.client();
        let code = client.start_device("cotal-cli").await?;
        approved(&client, code, "cotal-cli", clock, async |wait: Duration| {
            clock.1.lock().push(wait.as_secs_f64());
            clock.0.fetch_add(u64::try_from(wait.as_millis()).unwrap(), Ordering::Relaxed);
        })
        .await
    }

    #[tokio::test]
    async fn slow_down_lengthens_every_later_wait_by_five_seconds() {
        let answers = [
            (200, code()),
            pending("authorization_pending"),
            pending("slow_down"),
            pending("authorization_pending"),
            pending("slow_down"),
            session(),
        ];
        let (idp, clock) = (Scripted::new(&answers).await, Slept::default());
        assert_eq!(poll(&idp, &clock).await.unwrap().token.as_str(), "opaque");
        assert_eq!(*clock.1.lock(), [1.0, 1.0, 6.0, 6.0, 11.0]);
        let asked = idp.asked.lock().clone();
        assert_eq!(asked[0], "/api/auth/device/code {\"client_id\":\"cotal-cli\"}");
        let body: Value = serde_json::from_str(asked[1].split_once(' ').unwrap().1).unwrap();
        assert_eq!(
            body,
            json!({
                "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
                "device_code": "d", "client_id": "cotal-cli",
            })
        );
    }

    #[tokio::test]
    async fn the_interval_is_five_seconds_unless_named_and_never_below_one() {
        for (interval, wait) in [(Value::Null, 5.0), (json!(0.25), 1.0), (json!(2.5), 2.5)] {
            let mut code = code();
            if interval.is_null() {
                code.as_object_mut().unwrap().remove("interval");
            } else {
                code["interval"] = interval;
            }
            let (idp, clock) = (Scripted::new(&[(200, code), session()]).await, Slept::default());
            poll(&idp, &clock).await.unwrap();
            assert_eq!(*clock.1.lock(), [wait]);
        }
    }

    #[tokio::test]
    async fn the_deadline_is_looked_at_after_the_wait_and_before_the_poll() {
        let mut code = code();
        code["expires_in"] = json!(2);
        let pending = || pending("authorization_pending");
        let (idp, clock) =
            (Scripted::new(&[(200, code), pending(), pending(), session()]).await, Slept::default());
        let error = poll(&idp, &clock).await.err().unwrap().to_string();
        assert!(error.contains("expired"), "{error}");
        // At two seconds it is not past the deadline yet; at three it is, and nobody is asked.
        assert_eq!((clock.1.lock().len(), idp.asked.lock().len()), (3, 3));
    }

    #[tokio::test]
    async fn every_other_answer_to_a_poll_ends_the_login() {
        let jwt = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ6In0.c2ln";
        let cases = [
            (pending("access_denied"), "deny"),
            (pending("expired_token"), "expired"),
            (pending("invalid_grant"), "(invalid_grant)"),
            ((400, json!({ "error": "x", "error_description": "y\u{1b}" })), "(x: y\u{fffd})"),
            ((500, json!([])), "(HTTP 500)"),
            ((302, json!({})), "(HTTP 302; is this its auth base URL?)"),
            ((200, json!({ "expires_in": 1 })), "malformed session"),
            ((200, json!({ "access_token": "", "expires_in": 1 })), "malformed session"),
            ((200, json!({ "access_token": "a b", "expires_in": 1 })), "malformed session"),
            ((200, json!({ "access_token": "t" })), "malformed session"),
            ((200, json!({ "access_token": "t", "expires_in": 0 })), "malformed session"),
            ((200, json!({ "access_token": "t", "expires_in": 31_536_001 })), "malformed session"),
            ((200, json!({ "access_token": jwt, "expires_in": 1 })), "JWT"),
        ];
        for (answer, part) in cases {
            let (idp, clock) = (Scripted::new(&[(200, code()), answer]).await, Slept::default());
            let error = poll(&idp, &clock).await.err().unwrap().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[tokio::test]
    async fn a_malformed_device_code_is_refused_before_anybody_is_prompted() {
        let edits = [
            ("device_code", json!("")),
            ("user_code", json!(7)),
            ("user_code", json!("A\u{1b}[2J")),
            ("verification_uri", Value::Null),
            ("verification_uri_complete", json!([])),
            ("expires_in", json!(0)),
            ("expires_in", json!(86_401)),
            ("expires_in", json!("60")),
            ("interval", json!(0)),
            ("interval", json!(301)),
            ("interval", Value::Null),
        ];
        for (name, value) in edits {
            let mut code = code();
            code[name] = value.clone();
            let idp = Scripted::new(&[(200, code)]).await;
            let error = run(idp.args(), &idp.context()).await.unwrap_err().to_string();
            assert!(error.contains("malformed device code"), "{name} {value}: {error}");
            assert_eq!(idp.out.text(), "");
        }
        for (status, body, told) in [
            (400, json!({ "error": "invalid_client" }), "(invalid_client)"),
            (404, json!({}), "(HTTP 404; is this its auth base URL?)"),
            (501, json!({}), "(HTTP 501; is this its auth base URL?)"),
        ] {
            let idp = Scripted::new(&[(status, body)]).await;
            let refused = run(idp.args(), &idp.context()).await.unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_session_that_mints_no_token_is_never_cached() {
        let none = "eyJhbGciOiJFZERTQSJ9.eyJuYW1lIjoieiJ9.c2ln";
        let cases = [
            ((401, json!({})), "is over"),
            ((500, json!({})), "(HTTP 500)"),
            ((200, json!({})), "no usable token"),
            ((200, json!({ "token": "opaque" })), "no usable token"),
            ((200, json!({ "token": none })), "no usable token"),
        ];
        for (answer, part) in cases {
            let idp = Scripted::new(&[(200, code()), session(), answer]).await;
            let error = run(idp.args(), &idp.context()).await.unwrap_err().to_string();
            assert!(error.contains(part) && !idp.cached(), "{part}: {error}");
            // Prompted once, and told nothing of the session.
            assert_eq!(idp.out.text().matches("ABCD").count(), 2);
            assert!(!idp.out.text().contains("opaque"));
        }
    }
}
