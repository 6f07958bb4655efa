//! Batches read into page-locked memory.

use std::sync::{Arc, Mutex};

use ceteris_kernels::conformance::Rng;
use ceteris_loader::pipeline::{BUFFER_ALIGN, BufferAllocator};
use ceteris_trainer::data::{TrainData, batch_memory};
use ceteris_trainer::device::Target;

use crate::common::{Rows, device, sequence, small};

type Told = Arc<Mutex<Vec<String>>>;

fn memory(target: Target) -> (Arc<dyn BufferAllocator>, Told) {
    let told = Told::default();
    let heard = told.clone();
    let memory = batch_memory(
        target,
        Arc::new(move |text: &str| heard.lock().unwrap().push(text.to_owned())),
    );
    (memory, told)
}

/// Needs no device.
#[test]
fn without_a_device_batches_are_read_into_plain_memory() {
    let (plain, told) = memory(Target::Cpu);
    assert_eq!(plain.kind(), "plain");
    assert!(told.lock().unwrap().is_empty());
    let (plain, told) = memory(Target::Cuda(9999));
    assert_eq!(plain.kind(), "plain");
    let told = told.lock().unwrap();
    assert!(
        told.len() == 1 && told[0].contains("the loader reads into plain memory"),
        "{told:?}"
    );
}

#[test]
fn page_locked_buffers_hold_the_same_batches() {
    let Some(_turn) = device() else {
        return;
    };
    let (locked, told) = memory(Target::Cuda(0));
    assert_eq!(locked.kind(), "page-locked");
    for bytes in [0, 1, 4096, 4097, 1 << 20] {
        let region = locked.allocate(bytes).unwrap();
        assert!(region.len() >= bytes.max(1));
        assert_eq!(region.pointer().as_ptr() as usize % BUFFER_ALIGN, 0);
        // SAFETY: the region promises `len()` initialised bytes and nothing writes to them here.
        let all = unsafe { std::slice::from_raw_parts(region.pointer().as_ptr(), region.len()) };
        assert!(all.iter().all(|&b| b == 0));
    }
    assert!(told.lock().unwrap().is_empty());
    let mut config = small(96);
    config.loader.workers = 3;
    config.batch.micro_batch_size = 4;
    config.train.epochs = Some(3);
    let mut rng = Rng::new(3);
    let rows: Vec<Vec<i32>> = (0..50).map(|_| sequence(&mut rng, 96, 64)).collect();
    let read = |memory: Option<Arc<dyn BufferAllocator>>| {
        let mut data = TrainData::over(&config, Arc::new(Rows(rows.clone())), "rows".into()).unwrap();
        if let Some(memory) = memory {
            data.memory = memory;
        }
        let mut batches = data.batches(&config, None, None).unwrap();
        let mut found = Vec::new();
        while let Some(batch) = batches.next_batch().unwrap() {
            let pairs: Vec<_> = (0..batch.rows()).flat_map(|row| batch.pairs(row)).collect();
            found.push((batch.fingerprint.fingerprint.to_string(), pairs));
        }
        found
    };
    let plain = read(None);
    assert!(plain.len() >= 36);
    assert!(
        plain == read(Some(locked.clone())),
        "page-locked buffers hold other batches"
    );
    // More than any system locks: plain memory instead, said once; that has no such room either.
    for _ in 0..2 {
        assert!(locked.allocate(usize::MAX - 10).is_err());
    }
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("plain memory"), "{told:?}");
}
