//! Contract 05 §2.7 and §15.4: admission, the deadline, slow readers, and the end of a listener.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::super::{
    listener::{MAX_CONNECTIONS, refused},
    seats::Seats,
};
use super::{
    call::{BOTH, Call, FaceName, read_answer},
    rig::Rig,
};

/// A request whose body does not come: it is admitted, and stays.
async fn hanging(rig: &Rig, face: FaceName) -> TcpStream {
    let mut call = Call::exchange(vec![b' '; 10]);
    if face == FaceName::Loopback {
        call.headers.insert("authorization".into(), format!("Bearer {}", rig.cap.expose()));
    }
    let mut stream = TcpStream::connect(rig.addr(face)).await.unwrap();
    stream.write_all(call.head().as_bytes()).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn a_request_past_its_deadline_gets_503_and_loses_its_connection() {
    let rig = Rig::start().await;
    let mut stream = hanging(&rig, FaceName::Public).await;
    let before = tokio::time::Instant::now();
    let answer = read_answer(&mut stream).await;
    assert_eq!((answer.status, answer.error().as_str()), (503, "request deadline exceeded"));
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(11), "{took:?}");
}

#[tokio::test]
async fn a_crowd_of_silent_connections_locks_nobody_out() {
    let rig = Rig::start().await;
    for face in BOTH {
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(rig.addr(face)).await.unwrap());
        }
        let answer = rig.send(face, &Call::get("/health")).await;
        assert_eq!(answer.status, 200);
        // The oldest gave way.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
    }
}

/// Whether the other end closed it, or does so before long.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0])).await;
    read.is_ok_and(|read| read.unwrap_or(0) == 0)
}

#[tokio::test]
async fn a_crowd_at_one_face_takes_no_more_than_the_faces_share_and_locks_nobody_out_of_another() {
    let seats = Arc::new(Seats::bound_by(|_| 16));
    let (rig, other) = (Rig::with_seats(Arc::clone(&seats)).await, Rig::with_seats(seats).await);
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS - 1 {
        silent.push(TcpStream::connect(rig.addr(FaceName::Loopback)).await.unwrap());
    }
    for (rig, face) in [(&rig, FaceName::Public), (&other, FaceName::Loopback), (&other, FaceName::Public)] {
        assert_eq!(rig.send(face, &Call::get("/health")).await.status, 200);
    }
    // All but the share have given way, the oldest first.
    let cut = silent.len() - 16;
    for stream in &mut silent[..cut] {
        assert!(is_closed(stream).await);
    }
}

#[tokio::test]
async fn an_accept_that_finds_no_descriptor_sends_the_oldest_idle_guest_away() {
    let seats = Arc::new(Seats::bound_by(|_| 1_000));
    let rig = Rig::with_seats(Arc::clone(&seats)).await;
    let out = |errno: rustix::io::Errno| refused(&io::Error::from(errno), "loopback", &seats);
    let nobody = out(rustix::io::Errno::MFILE);
    let mut silent = TcpStream::connect(rig.addr(FaceName::Public)).await.unwrap();
    // It is seated once a later one was served, whose seat may still be taken.
    assert_eq!(rig.send(FaceName::Public, &Call::get("/health")).await.status, 200);
    assert_eq!(out(rustix::io::Errno::CONNABORTED), nobody, "others are no reason to send anybody away");
    assert!(out(rustix::io::Errno::MFILE) < nobody);
    assert!(is_closed(&mut silent).await);
}

#[tokio::test]
async fn a_connection_with_a_request_in_progress_does_not_give_way() {
    let rig = Rig::start().await;
    let mut first = hanging(&rig, FaceName::Loopback).await;
    assert_eq!(rig.send(FaceName::Loopback, &Call::get("/health")).await.status, 200);
    let mut silent = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        silent.push(TcpStream::connect(rig.addr(FaceName::Loopback)).await.unwrap());
    }
    assert_eq!(rig.send(FaceName::Loopback, &Call::get("/health")).await.status, 200);
    first.write_all(&[b' '; 10]).await.unwrap();
    assert_eq!(read_answer(&mut first).await.status, 400, "its body, blank as it is, was still read");
}

#[tokio::test]
async fn the_65th_request_in_flight_is_busy_before_its_path_is_looked_at() {
    let rig = Rig::start().await;
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(hanging(&rig, FaceName::Public).await);
    }
    // Admission happens when a head was read: wait for the 64th by asking until it is busy.
    let busy = loop {
        let answer = rig.send(FaceName::Public, &Call::get("/nowhere")).await;
        if answer.status == 503 {
            break answer;
        }
        assert_eq!(answer.status, 404);
    };
    assert_eq!(busy.error(), "busy - retry shortly");
    assert_eq!(
        rig.send(FaceName::Loopback, &Call::get("/health")).await.status,
        200,
        "the other face is not"
    );
    drop(held);
    while rig.send(FaceName::Public, &Call::get("/health")).await.status != 200 {}
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_not_waited_for() {
    let rig = Rig::start().await;
    for face in BOTH {
        let mut stream = TcpStream::connect(rig.addr(face)).await.unwrap();
        stream.write_all(b"POST /exchange HTTP/1.1\r\nhost: x\r\n").await.unwrap();
        let before = tokio::time::Instant::now();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(before.elapsed() < Duration::from_secs(11), "{face:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopping_listener_refuses_new_connections_and_cuts_what_does_not_end_in_ten_seconds() {
    let rig = Rig::start().await;
    let mut stream = hanging(&rig, FaceName::Loopback).await;
    // The head was read once another request has been answered after it.
    assert_eq!(rig.send(FaceName::Loopback, &Call::get("/health")).await.status, 200);
    let before = tokio::time::Instant::now();
    rig.loopback.stop().await;
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(11), "{took:?}");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    assert!(TcpStream::connect(rig.loopback.addr()).await.is_err());
}
