//! The OpenAPI document, tried on both faces of a service that runs: schemathesis makes requests of it, right and wrong
//! ones, and holds every answer against it.
//!
//! `cargo xtask test` fetches it and says where it lies; without it the test says that it did not run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use cotal_testkit::stage::Stage;
use cotal_workspace::broker_config::free_port;

const VARIABLE: &str = "COTAL_WITNESS_SCHEMATHESIS";
/// What an answer is held against: its status, its content type and its body are documented, and none is a server error.
const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
/// Requests that are made up for each operation, beside those that its schema calls for.
const EXAMPLES: &str = "25";

fn schemathesis() -> Option<PathBuf> {
    let found = std::env::var_os(VARIABLE).map(PathBuf::from);
    if found.is_none() {
        eprintln!("not run: {VARIABLE} names no schemathesis; run `cargo xtask test`");
    }
    found
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

/// Tries a face. The capability travels in the environment: a command line is for everybody to read.
fn try_face(program: &Path, stage: &Stage, face: &str, url: &str, capability: Option<&str>) -> Result<()> {
    let dir = stage.root().join(face);
    std::fs::create_dir_all(&dir)?;
    let headers = capability.map_or("", |_| "[headers]\nAuthorization = \"Bearer ${COTAL_CAPABILITY}\"\n");
    std::fs::write(dir.join("schemathesis.toml"), headers)?;
    let mut command = Command::new(program);
    command
        .arg("run")
        .arg(document())
        .args(["--url", url, "--checks", CHECKS, "--max-examples", EXAMPLES])
        .args(["--generation-deterministic", "--phases", "examples,coverage,fuzzing"])
        .args(["--request-timeout", "15", "--no-color"])
        .current_dir(&dir);
    if let Some(capability) = capability {
        command.env("COTAL_CAPABILITY", capability);
    }
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the {face} face and the document disagree:\n{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_faces_answer_as_the_openapi_document_says_whatever_they_are_asked() -> Result<()> {
    let Some(program) = schemathesis() else { return Ok(()) };
    let stage = Stage::new(env!("CARGO_BIN_EXE_cotal"))?;
    let public = free_port()?;
    let (port, url) = (public.to_string(), format!("http://127.0.0.1:{public}"));
    let faces = ["--exchange-public-port", &port, "--exchange-public-url", "https://auth.example"];
    stage.ok(&[&["up", "--user-auth", "--dev-idp", "--port", "0"][..], &faces].concat())?;
    let space = stage.space().await?;
    try_face(&program, &stage, "loopback", &space.discovery.url, Some(space.discovery.cap.as_str()))?;
    try_face(&program, &stage, "public", &url, None)
}
