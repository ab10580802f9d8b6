//! The service's own connections, a replica's, and the delivery daemon's.

use crate::templates::{may, template, templates};

#[test]
fn only_the_observer_and_the_evictor_reach_the_system_account() {
    for (name, permissions) in templates() {
        let rows = permissions.publish.allow.iter().chain(&permissions.subscribe.allow);
        let system = rows.filter(|row| row.starts_with("$SYS.")).count();
        assert_eq!(system > 0, name.starts_with("sys-"), "{name}");
        if name.starts_with("sys-") {
            let alien = |row: &&String| {
                row.starts_with("cotal.") || row.starts_with("$JS.") || row.starts_with("$KV.")
            };
            assert!(!permissions.publish.allow.iter().any(|row| alien(&row)), "{name}");
        }
    }
}

#[test]
fn only_who_asks_the_delivery_daemon_may_and_only_the_daemon_answers() {
    for (name, permissions) in templates() {
        let request = "cotal.main.ctl.delivery-admin.local.asker";
        let (reply, foreign) =
            (format!("{request}.reply.n"), "cotal.main.ctl.delivery-admin.local.other.reply.n");
        let asks = may(&permissions.publish, request);
        assert_eq!(asks, ["supervisor", "endpoint-evictor"].contains(&name), "{name}");
        assert_eq!(may(&permissions.subscribe, &reply), asks, "{name}");
        assert!(!may(&permissions.subscribe, foreign), "{name}");
        assert_eq!(may(&permissions.publish, &reply), name == "delivery", "{name}");
        assert_eq!(may(&permissions.subscribe, request), name == "delivery", "{name}");
    }
}

#[test]
fn only_the_writer_and_the_barrier_write_authority_rows_and_a_replica_only_issuance_rows() {
    let subjects = [
        "$KV.cotal_auth_main.gate.uuuuuuuuuuuuuuuuuuuuuuuuuu",
        "$KV.cotal_auth_main.natkey.U",
        "$KV.cotal_auth_main.plane",
        "$KV.cotal_records_main.lifecycle.o.a",
    ];
    for (name, permissions) in templates() {
        let writes = subjects.map(|subject| may(&permissions.publish, subject));
        let want = match name {
            "infra-authority-writer" => [true, true, false, true],
            "infra-replica-store" => [false, true, false, false],
            "infra-barrier-executor" => [true, false, true, true],
            _ => [false; 4],
        };
        assert_eq!(writes, want, "{name}");
    }
}

/// A credential of a tenant that wrote one of these would make what is another's its own.
#[test]
fn only_the_writer_says_whose_an_instance_or_a_session_is() {
    for (name, permissions) in templates() {
        for row in ["epowner.manager.iiiiiiiiiiiiiiiiiiiiiiiiii", "sessowner.ssssssssssssssssssssss"] {
            let writes = may(&permissions.publish, &format!("$KV.cotal_auth_main.{row}"));
            assert_eq!(writes, name == "infra-authority-writer", "{name}: {row}");
        }
    }
}

#[test]
fn a_replica_creates_no_store_and_enumerates_nothing() {
    let replica = template("infra-replica-store");
    for subject in [
        "$JS.API.STREAM.CREATE.KV_cotal_auth_main",
        "$JS.API.STREAM.UPDATE.KV_cotal_auth_main",
        "$JS.API.STREAM.PURGE.KV_cotal_auth_main",
        "$JS.API.STREAM.MSG.DELETE.KV_cotal_auth_main",
        "$JS.API.CONSUMER.CREATE.KV_cotal_auth_main",
        "$JS.API.STREAM.MSG.GET.KV_cotal_records_main",
        "$JS.API.STREAM.MSG.GET.KV_cotal_issued_main",
        "$KV.cotal_auth_main.svcadmit",
        "$KV.cotal_auth_main.natkey.U.x",
        "$KV.cotal_issued_main.v1.x",
    ] {
        assert!(!may(&replica.publish, subject), "{subject}");
    }
    assert!(!replica.publish.allow.iter().any(|row| row.starts_with("cotal.") || row.contains("CONSUMER")));
}
