//! Managers that hold no signing key, and the connection that issues to them.

use cotal_wire::SessionId;

use crate::templates::{instance, may, owner, session, template, templates};

#[test]
fn a_remote_manager_reaches_its_own_registration_and_no_other() {
    let (own, other) = (instance(), "j".repeat(26));
    for (name, actor) in
        [("remote-manager-supervisor", "manager_"), ("remote-manager-executor", "manager_exec_")]
    {
        let manager = template(name);
        let presence = |actor: &str| format!("$KV.cotal_presence_main.{}.{actor}", owner());
        for granted in [
            format!("$KV.cotal_manager_main.lease.{own}"),
            presence(&format!("{actor}{own}")),
            format!("$KV.cotal_auth_main.epgate.manager.{own}"),
            format!("$KV.cotal_auth_main.epcred.manager.{own}.c1"),
            format!("$KV.cotal_records_main.svc.manager.{own}.spec"),
            "$KV.cotal_records_main.govern.manager".to_owned(),
        ] {
            assert!(may(&manager.publish, &granted), "{name}: {granted}");
        }
        for refused in [
            format!("$KV.cotal_manager_main.lease.{other}"),
            "$KV.cotal_manager_main.renewal".to_owned(),
            presence("alice"),
            format!("$KV.cotal_auth_main.epgate.manager.{other}"),
            format!("$KV.cotal_auth_main.epgate.auth.{own}"),
            format!("$KV.cotal_auth_main.epcred.manager.{other}.c1"),
            "$KV.cotal_auth_main.plane".to_owned(),
            format!("$KV.cotal_records_main.svc.manager.{other}.spec"),
            "$KV.cotal_records_main.govern.auth".to_owned(),
            "$KV.cotal_records_main.lifecycle.o.a".to_owned(),
            "$JS.API.CONSUMER.CREATE.KV_cotal_records_main.x".to_owned(),
            "$JS.API.CONSUMER.CREATE.DM_main.dm_x".to_owned(),
            "cotal.main.ctl.delivery-admin.local.x".to_owned(),
            format!("cotal.main.ep.reply.manager.{own}.0.o.a.u.n"),
        ] {
            assert!(!may(&manager.publish, &refused), "{name}: {refused}");
        }
    }
}

#[test]
fn the_duties_of_a_serving_manager_hold_no_row_of_each_other() {
    let (goal, ledger, serving) =
        (template("goal-writer"), template("session-ledger"), template("session-serving"));
    let (own, stranger) = (owner().as_str().to_owned(), format!("u_{}", "z".repeat(26)));
    let fact = |endpoint: &str, last: &str| format!("cotal.main.epf.{endpoint}.goal.{own}.a.u.g1.{last}");
    let row = |kind: &str, caller: &str| format!("$KV.cotal_records_main.{kind}.manager.{caller}.a.u.g1");
    let platforms = template("goal-writer-platform");
    for caller in [own.as_str(), "local"] {
        for kind in ["goal", "goalidx", "goaleff"] {
            assert!(may(&goal.publish, &row(kind, caller)) && !may(&goal.publish, &row(kind, &stranger)));
            assert!(
                may(&platforms.publish, &row(kind, caller)) && may(&platforms.publish, &row(kind, &stranger))
            );
        }
    }
    assert!(may(&goal.publish, &fact("manager", "bind")) && may(&goal.publish, &fact("manager", "result")));
    for refused in [
        format!("cotal.main.epf.manager.goal.{stranger}.a.u.g1.bind"),
        format!("cotal.main.epf.manager.goal.{stranger}.a.u.g1.result"),
        fact("other", "bind"),
        fact("manager", "x"),
        format!("cotal.main.epf.manager.dec.{own}.a.u.r1"),
        "cotal.main.epe.manager.i.0.goal.o.a.u.g1.x".to_owned(),
        "$KV.cotal_records_main.goal.other.o.a.u.g1.spec".to_owned(),
        "$KV.cotal_records_main.epname.manager.n".to_owned(),
        "$KV.cotal_sessions_main.session.s".to_owned(),
    ] {
        assert!(!may(&goal.publish, &refused), "{refused}");
    }
    let rail = |session: &SessionId, epoch: u64, way: &str| {
        format!("cotal.main.eps.manager.{session}.{epoch}.{way}")
    };
    let (own, other) = (session(), SessionId::parse(&"t".repeat(22)).unwrap());
    assert!(may(&ledger.publish, &format!("$KV.cotal_sessions_main.session.{own}")));
    for refused in [
        "$KV.cotal_sessions_main.chat.o.s".to_owned(),
        "$KV.cotal_sessions_main.session.a.b".to_owned(),
        "$KV.cotal_auth_main.session.s".to_owned(),
        rail(&own, 3, "in"),
        rail(&own, 3, "out"),
        "$JS.API.CONSUMER.CREATE.KV_cotal_sessions_main.x".to_owned(),
    ] {
        assert!(!may(&ledger.publish, &refused), "{refused}");
    }
    assert!(may(&serving.publish, &rail(&own, 3, "out")) && may(&serving.subscribe, &rail(&own, 3, "in")));
    for refused in
        [rail(&own, 3, "in"), rail(&own, 4, "out"), rail(&other, 3, "out"), "$JS.API.INFO".to_owned()]
    {
        assert!(!may(&serving.publish, &refused), "{refused}");
    }
    for refused in [rail(&own, 3, "out"), rail(&own, 4, "in"), rail(&other, 3, "in")] {
        assert!(!may(&serving.subscribe, &refused), "{refused}");
    }
}

#[test]
fn a_transfer_reader_clears_one_store_and_fills_none() {
    let reader = template("transfer-reader");
    let (own, other) =
        (format!("cotal_xfer_main_{}", instance()), format!("cotal_xfer_main_{}", "j".repeat(26)));
    assert!(may(&reader.publish, &format!("$JS.API.STREAM.PURGE.OBJ_{own}")));
    for refused in [
        format!("$O.{own}.C.x"),
        format!("$O.{other}.M.x"),
        format!("$JS.API.STREAM.DELETE.OBJ_{own}"),
        format!("$JS.API.STREAM.UPDATE.OBJ_{own}"),
        format!("$JS.API.STREAM.PURGE.OBJ_{other}"),
        format!("$JS.API.STREAM.MSG.GET.OBJ_{other}"),
        "$JS.API.STREAM.MSG.GET.OBJ_cotal_artifacts_main".to_owned(),
    ] {
        assert!(!may(&reader.publish, &refused), "{refused}");
    }
    for (name, permissions) in templates() {
        let names = permissions.publish.allow.iter().any(|row| row.contains("cotal_xfer_"));
        assert_eq!(names, ["transfer-reader", "transfer-writer", "teardown"].contains(&name), "{name}");
    }
}

#[test]
fn the_issuer_answers_nobody_and_writes_rows_of_endpoint_families_alone() {
    let issuer = template("infra-remote-manager-issuer");
    let writes: Vec<&String> =
        issuer.publish.allow.iter().filter(|row| !row.starts_with("$JS.API.")).collect();
    let rows = ["epgate.>", "epcred.>"];
    assert_eq!(writes, rows.map(|row| format!("$KV.cotal_auth_main.{row}")).each_ref());
    let caller = "u_a.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu.n1";
    let issued = "u_a.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu.g1.n1";
    for heard in [
        format!("cotal.main.ep.v1.one.manager.run-start.{issued}"),
        format!("cotal.main.ep.inst.manager.{}.run-answer.self.{caller}", instance()),
        format!("cotal.main.ep.v1.inst.manager.{}.run-cancel.{issued}", instance()),
    ] {
        assert!(may(&issuer.subscribe, &heard), "{heard}");
    }
    for deaf in [
        format!("cotal.main.ep.one.manager.spawn.{caller}"),
        format!("cotal.main.ep.one.manager.run-start.{caller}"),
        format!("cotal.main.ep.v1.one.manager.run-cancel.{issued}"),
        format!("cotal.main.ep.one.auth.run-start.{caller}"),
        "cotal.main.chat.o.a.general".to_owned(),
    ] {
        assert!(!may(&issuer.subscribe, &deaf), "{deaf}");
    }
}
