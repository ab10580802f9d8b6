//! Whose sessions are, by the host's own word.

use std::time::Duration;

use cotal_authority::NotOwn;
use cotal_broker::kv::LeaderRead;
use cotal_trust::system::SystemClock;
use cotal_wire::{Clock, Owner, SessionId, UnixSecs, names::session_owner_key, rows::SessionOwnership};

use crate::{
    harness::{OWNER, World, eventually},
    plane::open,
};

fn session(letter: char) -> SessionId {
    SessionId::parse(&letter.to_string().repeat(43)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_its_first_owners_and_removed_once_nothing_granted_under_it_lives() {
    let world = World::start().await;
    let (one, other) =
        (Owner::parse(OWNER).unwrap(), Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap());
    let now = SystemClock.now_secs();
    let put = async |letter: char, until: UnixSecs| {
        let row = SessionOwnership { owner: one.clone(), until }.to_bytes();
        let row = String::from_utf8(row).unwrap();
        world.put(&world.auth, &session_owner_key(&session(letter)), &row).await;
    };
    let plane = open(&world, Duration::from_secs(3_600)).await.unwrap();
    put('l', UnixSecs(now.0 - 7_200)).await;
    put('e', UnixSecs(now.0 - 60)).await;
    world.put(&world.auth, &session_owner_key(&session('g')), "{}").await;

    let until = plane.bind_session(&session('s'), &one).await.unwrap().unwrap();
    assert!(until.since(now) >= 86_400, "a day");
    assert_eq!(plane.bind_session(&session('s'), &one).await.unwrap(), Ok(until), "once");
    assert_eq!(plane.bind_session(&session('s'), &other).await.unwrap(), Err(NotOwn::Anothers));
    assert_eq!(plane.bind_session(&session('e'), &one).await.unwrap(), Err(NotOwn::Over));

    // The binding has the sweep begin.
    let read =
        async |letter: char| world.auth.leader_read(&session_owner_key(&session(letter))).await.unwrap();
    eventually("what is long over is removed", async || matches!(read('l').await, LeaderRead::Marker(_)))
        .await;
    assert_eq!(plane.bind_session(&session('l'), &other).await.unwrap(), Err(NotOwn::Over), "for now");
    for stays in ['e', 'g', 's'] {
        assert!(matches!(read(stays).await, LeaderRead::Value(_)), "{stays}");
    }
    plane.close().await.unwrap();
}
