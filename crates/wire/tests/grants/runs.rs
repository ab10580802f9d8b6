//! The credentials of a run.

use crate::templates::{may, run, template, templates};

#[test]
fn a_runs_credentials_name_that_run_and_only_its_driver_appends() {
    let other = "run-ffffffffffffffffffffffffffffffff";
    let own = run();
    let journal = |run: &str| format!("cotal.main.wfj.{run}");
    let replay = |run: &str, takeover: &str, filter: &str| {
        format!("$JS.API.CONSUMER.CREATE.WFJ_main.wfj_{run}_{takeover}.cotal.main.wfj.{filter}")
    };
    let run_names = ["run-driver", "run-mediator", "run-operator-run", "run-operator-answer"];
    for (name, permissions) in templates() {
        let appends = may(&permissions.publish, &journal(own.as_str()));
        assert_eq!(appends, name == "run-driver", "{name}");
        let replays = may(&permissions.publish, &replay(own.as_str(), "0123456789abcdef", own.as_str()));
        assert_eq!(replays, run_names.contains(&name), "{name}");
        for refused in [
            journal(other),
            replay(other, "0123456789abcdef", other),
            replay(own.as_str(), "ffffffffffffffff", own.as_str()),
            replay(own.as_str(), "0123456789abcdef", other),
            format!("$KV.cotal_records_main.run.manager.{other}.status"),
            format!("$KV.cotal_admission_main.admission.v1.manager.{other}"),
        ] {
            assert!(!may(&permissions.publish, &refused), "{name}: {refused}");
        }
        let admits =
            may(&permissions.publish, &format!("$KV.cotal_admission_main.admission.v1.manager.{own}"));
        assert_eq!(admits, name.starts_with("run-admitter"), "{name}");
    }
}

#[test]
fn an_operator_answers_the_one_checkpoint_that_was_read_for_it() {
    let (looks, answers) = (template("run-operator-run"), template("run-operator-answer"));
    let record = |kind: &str, token: &str| format!("$KV.cotal_records_main.{kind}.manager.{token}.x");
    for kind in ["answer", "cp"] {
        assert!(may(&answers.publish, &record(kind, "token1")));
        assert!(!may(&answers.publish, &record(kind, "token2")), "{kind}");
        assert!(!may(&looks.publish, &record(kind, "token1")), "{kind}");
    }
    assert!(may(&answers.publish, "cotal.main.epf.manager.cp.token1"));
    assert!(!may(&answers.publish, "cotal.main.epf.manager.cp.token2"));
}
