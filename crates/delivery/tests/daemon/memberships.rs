//! The inventory, from keys.

use cotal_wire::LifecycleUid;

use crate::house::{House, OWNER, principal};

#[tokio::test]
async fn exactly_the_incarnations_channels_are_listed_garbled_rows_included() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let bucket = house.names().members_bucket();
    let (uid, other) = ("u".repeat(26), "v".repeat(26));
    for (key, value) in [
        (format!("general/{OWNER}.alice.{uid}"), "{}"),
        (format!("team.backend/{OWNER}.alice.{uid}"), "no JSON at all"),
        (format!("empty/{OWNER}.alice.{uid}"), ""),
        (format!("left/{OWNER}.alice.{uid}"), "{}"),
        (format!("elsewhere/{OWNER}.alice.{other}"), "{}"),
        (format!("general/{OWNER}.bob.{uid}"), "{}"),
        (format!("a/{OWNER}.alice2.{uid}"), "{}"),
        ("no-slash".to_owned(), "{}"),
    ] {
        house.put(&bucket, &key, value).await;
    }
    house.delete(&bucket, &format!("left/{OWNER}.alice.{uid}")).await;
    let of = |uid: &str| LifecycleUid::parse(uid).unwrap();
    let admin = house.admin();
    let channels = admin.lifecycle_memberships(&principal("alice"), &of(&uid)).await.unwrap();
    assert_eq!(channels, ["empty", "general", "team.backend"]);
    let elsewhere = admin.lifecycle_memberships(&principal("alice"), &of(&other)).await.unwrap();
    assert_eq!(elsewhere, ["elsewhere"]);
    let none = admin.lifecycle_memberships(&principal("carol"), &of(&uid)).await.unwrap();
    assert!(none.is_empty());

    house.api(&format!("STREAM.DELETE.KV_{bucket}"), &serde_json::json!({})).await;
    assert!(
        admin.lifecycle_memberships(&principal("alice"), &of(&uid)).await.is_err(),
        "unreadable is no empty list"
    );
}
