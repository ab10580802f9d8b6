//! Whoever serves an endpoint, registers one, or asks one for a retirement.

use crate::templates::{instance, may, template, who};

#[test]
fn an_instance_serves_its_own_commands_under_its_own_epoch_and_nothing_else() {
    let served = template("endpoint-serve");
    let at = |epoch: u64| format!("cotal.main.ep.reply.com_example_search.{}.{epoch}.o.a.u.n", instance());
    assert!(may(&served.publish, &at(3)) && !may(&served.publish, &at(4)));
    assert!(
        !served.publish.allow.iter().any(|row| row.starts_with("$JS")),
        "nothing to bind, nothing to ask"
    );
    // The class rail is granted in the queue group alone.
    assert!(!may(&served.subscribe, "cotal.main.ep.one.com_example_search.find.o.a.u.n"));
    assert!(
        served
            .subscribe
            .allow
            .contains(&"cotal.main.ep.one.com_example_search.find.> com_example_search".to_owned())
    );
    assert!(may(&served.subscribe, "cotal.main.ep.all.com_example_search.describe.o.a.u.n"));
    assert!(!may(&served.subscribe, "cotal.main.ep.all.com_example_search.other.o.a.u.n"));
}

#[test]
fn a_registration_executor_touches_one_instance_and_creates_no_consumer() {
    let executor = template("infra-registration-executor");
    let may = |subject: &str| may(&executor.publish, subject);
    let (own, other) = (instance(), "j".repeat(26));
    assert!(may(&format!("$KV.cotal_auth_main.epgate.auth.{own}")));
    assert!(may(&format!("$KV.cotal_auth_main.epcred.auth.{own}.c1")));
    assert!(!may(&format!("$KV.cotal_auth_main.epgate.auth.{other}")));
    assert!(!may(&format!("$KV.cotal_auth_main.epgate.manager.{own}")));
    assert!(!may("$KV.cotal_records_main.govern.manager"));
    assert!(!executor.publish.allow.iter().any(|row| row.contains("CONSUMER")));
}

#[test]
fn the_auth_listener_serves_reads_one_store_and_writes_none() {
    let listener = template("infra-auth-listener");
    let beyond_serving: Vec<&String> =
        listener.publish.allow.iter().filter(|row| !row.starts_with("cotal.main.ep")).collect();
    assert_eq!(beyond_serving, ["$JS.API.INFO", "$JS.API.STREAM.MSG.GET.KV_cotal_auth_main"]);
    let class: Vec<&String> = listener.subscribe.allow.iter().filter(|row| row.contains(".one.")).collect();
    assert_eq!(class.len(), 4);
    assert!(class.iter().all(|row| row.ends_with("> auth")), "the class rail is heard in the group alone");
}

#[test]
fn a_retirement_requester_may_retire_one_incarnation_and_nobody_else() {
    let requester = template("retirement-requester");
    let may = |subject: &str| may(&requester.publish, subject);
    let (uid, host) = ("u".repeat(26), format!("local.host.{}", "h".repeat(26)));
    let ask = |command: &str, target: &str, caller: &str| {
        format!("cotal.main.ep.one.auth.{command}.handle.{target}.{caller}.n1")
    };
    let target = format!("{}.{uid}", who().principal);
    assert!(may(&ask("retire-lifecycle", &target, &host)));
    for refused in [
        ask("retire-lifecycle", &format!("{}.{}", who().principal, "v".repeat(26)), &host),
        ask("retire-lifecycle", &format!("local.other.{uid}"), &host),
        ask("retire-lifecycle", &target, &format!("local.other.{}", "h".repeat(26))),
        ask("other", &target, &host),
        format!("cotal.main.ep.one.auth.retire-lifecycle.any.local.{host}.n1"),
        "$KV.cotal_auth_main.gate.x".to_owned(),
    ] {
        assert!(!may(&refused), "{refused}");
    }
}
