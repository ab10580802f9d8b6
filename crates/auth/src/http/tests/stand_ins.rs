//! What stands behind the faces here: it answers what a test says, and writes down what it was asked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use cotal_authority::{
    activation::ActivationFailure,
    manager::Holder,
    retirement::{Retirement, RetirementFailure},
};
use cotal_wire::{
    Actor, CredentialId, DerivedOwner, EpError, InstanceId, LifecycleUid, Principal, es_value::EsValue,
    manager_authority::Kind,
};
use parking_lot::Mutex;
use serde_json::{Value, value::to_raw_value};
use tokio::sync::Notify;

use crate::{
    authority::ConnectCredentials,
    http::doors::LifecycleDoor,
    manager::{self, AnswerManagers, VerifiedAgent},
    managers::{ManagerDirectory, ManagerInstance, SelectionArm, SelectionRefusal},
};

/// Where the next request waits, once a test has said so, until it lets it go on.
#[derive(Default)]
pub(super) struct Hold {
    armed: AtomicBool,
    reached: Notify,
    released: Notify,
}

impl Hold {
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Resolves once a request waits.
    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }

    pub(super) fn release(&self) {
        self.released.notify_one();
    }

    async fn pass(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.reached.notify_one();
            self.released.notified().await;
        }
    }
}

/// Stands for the plane: hands out one id an incarnation, and counts how often it was asked.
#[derive(Default)]
pub(super) struct Credentials {
    pub asked: AtomicUsize,
    pub refuse: Mutex<Option<EpError>>,
}

#[async_trait]
impl ConnectCredentials for Credentials {
    async fn mint_connect_credential(
        &self,
        _owner: &DerivedOwner,
        _actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<CredentialId, EpError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.refuse.lock().clone() {
            return Err(error);
        }
        Ok(CredentialId::parse(uid.as_str()).unwrap())
    }
}

/// A manager directory that answers what the test says.
pub(super) struct Managers {
    pub answer: Mutex<Result<InstanceId, SelectionRefusal>>,
    pub asked: AtomicUsize,
    pub arms: Mutex<Vec<SelectionArm>>,
    pub listed: Mutex<Result<Vec<ManagerInstance>, EpError>>,
    pub listed_for: Mutex<Vec<DerivedOwner>>,
}

#[async_trait]
impl ManagerDirectory for Managers {
    async fn select(
        &self,
        _owner: &DerivedOwner,
        _requested: Option<&InstanceId>,
        arm: SelectionArm,
    ) -> Result<InstanceId, SelectionRefusal> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.arms.lock().push(arm);
        self.answer.lock().clone()
    }

    async fn instances(&self, owner: &DerivedOwner) -> Result<Vec<ManagerInstance>, EpError> {
        self.listed_for.lock().push(owner.clone());
        self.listed.lock().clone()
    }
}

/// Stands for the plane behind the lifecycle doors: answers what the test says, and writes down what it was asked.
#[derive(Default)]
pub(super) struct Plane {
    fenced: AtomicBool,
    dies: AtomicBool,
    pub hold: Hold,
    retires: Mutex<Option<Result<Retirement, RetirementFailure>>>,
    activates: Mutex<Option<Result<(), ActivationFailure>>>,
    asked: Mutex<Vec<String>>,
    finished: Notify,
}

impl Plane {
    pub(super) fn fence(&self) {
        self.fenced.store(true, Ordering::SeqCst);
    }

    pub(super) fn dies(&self) {
        self.dies.store(true, Ordering::SeqCst);
    }

    pub(super) async fn finished(&self) {
        self.finished.notified().await;
    }

    pub(super) fn retires(&self, answer: Result<Retirement, RetirementFailure>) {
        *self.retires.lock() = Some(answer);
    }

    pub(super) fn activates(&self, answer: Result<(), ActivationFailure>) {
        *self.activates.lock() = Some(answer);
    }

    /// What passed the fence, in order.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }

    async fn retire(
        &self,
        what: &str,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.check_open().map_err(|error| RetirementFailure { error, began: false })?;
        self.asked.lock().push(format!("{what} {principal} {uid}"));
        self.hold.pass().await;
        self.finished.notify_one();
        self.retires.lock().clone().unwrap_or(Ok(Retirement::NotStarted))
    }
}

#[async_trait]
impl LifecycleDoor for Plane {
    fn check_open(&self) -> Result<(), EpError> {
        if self.fenced.load(Ordering::SeqCst) {
            return Err(EpError::unavailable("the plane is closed"));
        }
        Ok(())
    }

    async fn retire_interactive(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.retire("interactive", principal, uid).await
    }

    async fn retire_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.retire("managed", principal, uid).await
    }

    async fn activate_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<(), ActivationFailure> {
        self.check_open().map_err(|error| ActivationFailure { error, began: false })?;
        self.asked.lock().push(format!("activate {principal} {uid}"));
        assert!(!self.dies.load(Ordering::SeqCst), "a defect of the activation");
        self.activates.lock().clone().unwrap_or(Ok(()))
    }
}

/// What answers the requests of managers here: what the test says. It writes down what came so far.
#[derive(Default)]
pub(super) struct Authority {
    answers: Mutex<Option<Result<Value, EpError>>>,
    verifies: Mutex<Option<Result<VerifiedAgent, EpError>>>,
    asked: Mutex<Vec<(Holder, String)>>,
    dies: AtomicBool,
    pub hold: Hold,
}

impl Authority {
    pub(super) fn answers(&self, answer: Result<Value, EpError>) {
        *self.answers.lock() = Some(answer);
    }

    pub(super) fn verifies(&self, answer: Result<VerifiedAgent, EpError>) {
        *self.verifies.lock() = Some(answer);
    }

    /// Who asked what, as its text was before it came.
    pub(super) fn asked(&self) -> Vec<(Holder, String)> {
        self.asked.lock().clone()
    }

    pub(super) fn dies(&self) {
        self.dies.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl AnswerManagers for Authority {
    async fn dispatch(
        &self,
        holder: &Holder,
        request: &EsValue,
    ) -> Result<manager::Answer, manager::NoAnswer> {
        self.asked.lock().push((holder.clone(), request.stringify()));
        assert!(!self.dies.load(Ordering::SeqCst), "a defect of the dispatch");
        let answer = self.answers.lock().clone();
        self.hold.pass().await;
        let answer =
            answer.unwrap_or_else(|| Err(EpError::unimplemented("this house serves no managers")))?;
        Ok(to_raw_value(&answer).unwrap())
    }

    async fn verify_agent(
        &self,
        holder: &Holder,
        _kind: Kind,
        request: &EsValue,
    ) -> Result<VerifiedAgent, EpError> {
        self.asked.lock().push((holder.clone(), request.stringify()));
        let answer = self.verifies.lock().clone();
        answer.unwrap_or_else(|| Err(EpError::unimplemented("this house verifies nothing")))
    }
}
