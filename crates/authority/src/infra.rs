use cotal_wire::{ConnId, Names, Permissions, Rules};
fn base(names: &Names) -> (String, String) {
    (names.auth_stream(), names.records_stream())
}
pub(crate) fn connect_reader(names: &Names, inbox: &ConnId) -> Permissions {
    let (a, r) = base(names);
    Permissions {
        publish: Rules {
            allow: vec![
                "$JS.API.INFO".into(),
                format!("$JS.API.STREAM.INFO.{a}"),
                format!("$JS.API.STREAM.INFO.{r}"),
                format!("$JS.API.STREAM.MSG.GET.{a}"),
                format!("$JS.API.STREAM.MSG.GET.{r}"),
            ],
            deny: vec![],
        },
        subscribe: Rules { allow: vec![format!("_INBOX_{inbox}.>")], deny: vec![] },
    }
}
pub(crate) fn authority_writer(names: &Names, inbox: &ConnId) -> Permissions {
    let (a, r) = base(names);
    let (ab, rb) = (names.auth_bucket(), names.records_bucket());
    let mut p = connect_reader(names, inbox);
    p.publish.allow.extend([
        format!("$JS.API.STREAM.CREATE.{a}"),
        format!("$JS.API.STREAM.CREATE.{r}"),
        format!("$JS.API.STREAM.UPDATE.{r}"),
        format!("$KV.{ab}.gate.>"),
        format!("$KV.{ab}.cred.>"),
        format!("$KV.{ab}.bysrc.>"),
        format!("$KV.{ab}.natkey.>"),
        format!("$KV.{rb}.lifecycle.>"),
        format!("$KV.{rb}.uid.>"),
    ]);
    p
}
