//! Where data came from and where it went: logs of other runs, verification, manifests, look-ups, audits.

pub mod agreement;
pub mod audit;
pub mod candidates;
pub mod digests;
pub mod document_mix;
pub mod documents;
pub mod log;
pub mod lookup;
pub mod manifest;
pub mod mix;
pub mod search;
pub mod special_ids;
pub mod verify;
