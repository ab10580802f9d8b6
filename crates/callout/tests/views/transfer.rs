//! `transfer-writer`: one object.

use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use cotal_testkit::privilege::Privilege;
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    InstanceId, Sha256Hex, TransferWriterClaim, View,
    grants::{self, Profile},
};

use crate::{
    house::{House, Plan},
    serving::connected,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_writer_writes_its_one_object_and_nothing_beside_it() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["admin"], &["general"], &["general"]).await;
    let (instance, other) = (InstanceId::mint(&SystemEntropy), InstanceId::mint(&SystemEntropy));
    let (hex, else_hex) = ("ab".repeat(32), "cd".repeat(32));
    let object = TransferWriterClaim { instance_id: instance.clone(), hex: Sha256Hex::parse(&hex).unwrap() };
    let bearer = house.pinned(&granted, View::TransferWriter, |grant| cotal_trust::bearer::BearerGrant {
        transfer_writer: Some(object),
        ..grant
    });
    let store = |instance: &InstanceId| format!("$O.cotal_xfer_demo_{instance}");
    let rows = |instance: &InstanceId, hex: &str| {
        let name = URL_SAFE.encode(format!("sha256:{hex}"));
        [format!("{}.C.{hex}", store(instance)), format!("{}.M.{name}", store(instance))]
    };
    let stream = format!("OBJ_cotal_xfer_demo_{instance}");
    let [chunk, meta] = rows(&instance, &hex);
    let profile =
        Profile::TransferWriter { instance: instance.clone(), hex: Sha256Hex::parse(&hex).unwrap() };
    let signed =
        grants::permissions(&house.material.space.token(), &granted.connects("nonce-transfer"), &profile);
    let (others, elsewhere) = (rows(&instance, &else_hex), rows(&other, &hex));
    let privilege = Privilege {
        name: "transfer-writer",
        publishes: format!(
            "{chunk}
             {meta}
             $JS.API.DIRECT.GET.{stream}.{chunk}
             $JS.API.DIRECT.GET.{stream}.{meta}"
        ),
        hears: "_INBOX_nonce-transfer.>".to_owned(),
        never_publishes: format!(
            "{}
             {}
             {}
             {}
             $JS.API.DIRECT.GET.{stream}.{}
             $JS.API.STREAM.PURGE.{stream}
             $JS.API.STREAM.CREATE.{stream}
             $JS.API.STREAM.DELETE.{stream}
             $JS.API.STREAM.INFO.{stream}
             $JS.API.INFO
             cotal.demo.chat.{}.cli.general",
            others[0], others[1], elsewhere[0], elsewhere[1], others[0], granted.owner
        ),
        never_hears: "cotal.demo.>
                      $O.>
                      _INBOX.>"
            .to_owned(),
    };
    let mut client = connected(&house, &bearer, "nonce-transfer").await;
    privilege.hold(&mut client, &signed.unwrap()).await;
    // Taken back with its capability, as every view.
    let mut less = granted.clone();
    less.scope = vec![];
    let object = TransferWriterClaim { instance_id: instance, hex: Sha256Hex::parse(&hex).unwrap() };
    let bearer = house.pinned(&less, View::TransferWriter, |grant| cotal_trust::bearer::BearerGrant {
        transfer_writer: Some(object),
        ..grant
    });
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert_eq!(reason, "permissions: the view transfer-writer needs the capability admin");
    house.close().await;
}
