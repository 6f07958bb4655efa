//! What holds for every order of the registry, over every example its entry gives: the epoch consumes what it
//! reports, any place can be asked for in any sequence, and a resume is a seek.

use std::collections::BTreeMap;
use std::sync::Arc;

use ceteris_samplers::orders::{Needs, OrderEntry, REGISTRY};
use ceteris_samplers::{Epoch, Geometry, Order, OrderError, OrderInput, OrderSpec, Permutation, Place};

const SIZES: &[u64] = &[1, 2, 3, 7, 8, 9, 40, 103];

fn geometries() -> Vec<Geometry> {
    [(1, 1, 1), (1, 4, 2), (2, 4, 1), (3, 2, 3), (8, 1, 1), (5, 3, 2)]
        .into_iter()
        .map(
            |(world_size, micro_batch_size, gradient_accumulation_steps)| Geometry {
                world_size,
                micro_batch_size,
                gradient_accumulation_steps,
            },
        )
        .collect()
}

fn build(entry: &OrderEntry, example: &str, n: u64, geometry: Geometry) -> Option<Arc<dyn Order>> {
    let spec: OrderSpec = serde_json::from_str(example).unwrap_or_else(|e| panic!("{example}: {e}"));
    let mut input = OrderInput::new(n, geometry);
    match entry.needs {
        Needs::Rows => {}
        // A list that is no shuffle any order makes.
        Needs::List => input.list = Some(Arc::new(Permutation::from_indices((0..n).rev().collect()))),
    }
    match spec.build(&input) {
        Ok(order) => Some(order),
        // An example may hold steps that the smallest datasets do not have; some orders need a whole batch, or refuse
        // layouts whose counting they do not reproduce.
        Err(e) if n < 8 || n < geometry.samples_per_micro_step() || matches!(e, OrderError::Geometry(_)) => {
            println!("{example} over {n}, {geometry:?}: {e}");
            None
        }
        Err(e) => panic!("{example} over {n}, {geometry:?}: {e}"),
    }
}

/// Runs `check` on every example of every order, size and layout.
fn every_order(check: impl Fn(&str, &Arc<dyn Order>)) {
    for entry in REGISTRY {
        assert!(!entry.examples.is_empty(), "{} has no example", entry.name);
        for example in entry.examples {
            for &n in SIZES {
                for geometry in geometries() {
                    if let Some(order) = build(entry, example, n, geometry) {
                        check(&format!("{example} n={n} {geometry:?}"), &order);
                    }
                }
            }
        }
    }
}

fn places(order: &Arc<dyn Order>, micro_steps: std::ops::Range<u64>) -> Vec<Place> {
    let Geometry {
        world_size,
        micro_batch_size,
        ..
    } = order.geometry();
    let mut places = Vec::new();
    for micro_step in micro_steps {
        for rank in 0..world_size {
            for slot in 0..micro_batch_size {
                places.push(Place {
                    micro_step,
                    rank,
                    slot,
                });
            }
        }
    }
    places
}

fn samples(order: &Arc<dyn Order>, epoch: &Arc<dyn Epoch>, from: u64) -> Vec<(Place, u64)> {
    places(order, from..epoch.micro_steps())
        .into_iter()
        .filter_map(|place| Some((place, epoch.sample(place)?)))
        .collect()
}

/// The first `n` epochs, fewer where the order has fewer.
fn epochs(order: &Arc<dyn Order>, n: u64) -> std::ops::Range<u64> {
    0..order.num_epochs().map_or(n, |known| known.min(n))
}

fn counts(values: impl IntoIterator<Item = u64>) -> BTreeMap<u64, u64> {
    values.into_iter().fold(BTreeMap::new(), |mut map, v| {
        *map.entry(v).or_default() += 1;
        map
    })
}

#[test]
fn an_epoch_is_its_positions_with_padding_and_drops_as_reported() {
    every_order(|what, order| {
        for e in epochs(order, 3) {
            let epoch = order.epoch(e).unwrap();
            let places = places(order, 0..epoch.micro_steps() + 2);
            let consumed = places.iter().filter_map(|p| epoch.position(*p));
            let (padded, dropped) = (epoch.padded(), epoch.dropped());
            assert_eq!(order.num_padded(), padded.len() as u64, "{what}");
            assert_eq!(order.num_dropped(), dropped.len() as u64, "{what}");
            // Every position once: what was consumed and what was dropped, less what was consumed a second time.
            let mut whole = counts(consumed.chain(dropped));
            for position in &padded {
                *whole.get_mut(position).unwrap() -= 1;
            }
            let want: BTreeMap<u64, u64> = (0..order.num_positions()).map(|p| (p, 1)).collect();
            assert_eq!(whole, want, "{what} epoch {e}");
            let padding = places.iter().filter(|p| epoch.is_padding(**p));
            let padding: Vec<u64> = padding.filter_map(|p| epoch.position(*p)).collect();
            assert_eq!(counts(padding), counts(padded), "{what} epoch {e}");
        }
    });
}

#[test]
fn deal_indices_and_places_are_inverse_and_complete() {
    every_order(|what, order| {
        let epoch = order.epoch(0).unwrap();
        let mut indices: Vec<u64> = places(order, 0..epoch.micro_steps() + 1)
            .into_iter()
            .filter_map(|place| {
                let k = epoch.deal_index(place)?;
                assert_eq!(epoch.place_of(k), Some(place), "{what}");
                assert!(
                    epoch.sample(place).is_some() && epoch.position(place).is_some(),
                    "{what}"
                );
                Some(k)
            })
            .collect();
        indices.sort_unstable();
        let end = indices.len() as u64;
        assert_eq!(indices, (0..end).collect::<Vec<_>>(), "{what}");
        assert_eq!(epoch.place_of(end), None, "{what}");
        assert_eq!(
            end + order.num_dropped(),
            order.num_positions() + order.num_padded(),
            "{what}"
        );
    });
}

#[test]
fn steps_cover_all_micro_steps() {
    every_order(|what, order| {
        let epoch = order.epoch(epochs(order, 2).end - 1).unwrap();
        assert_eq!(epoch.micro_steps(), order.micro_steps_per_epoch(), "{what}");
        assert_eq!(epoch.steps(), order.steps_per_epoch(), "{what}");
        let steps: Vec<u64> = (0..epoch.micro_steps()).map(|m| epoch.step_of(m)).collect();
        assert!(
            steps.windows(2).all(|w| w[1] == w[0] || w[1] == w[0] + 1),
            "{what}"
        );
        assert_eq!(steps.last().map_or(0, |s| s + 1), epoch.steps(), "{what}");
        // A rank has a sample in the last micro-step, or there would be one fewer.
        if let Some(last) = epoch.micro_steps().checked_sub(1) {
            assert!(
                places(order, last..last + 1)
                    .iter()
                    .any(|p| epoch.sample(*p).is_some()),
                "{what}"
            );
        }
    });
}

#[test]
fn a_resume_is_a_seek() {
    every_order(|what, order| {
        let per_epoch = order.micro_steps_per_epoch();
        if per_epoch == 0 {
            assert!(order.locate(0).is_err(), "{what}");
            return;
        }
        let whole: Vec<(u64, Vec<(Place, u64)>)> = epochs(order, 3)
            .map(|e| (e, samples(order, &order.epoch(e).unwrap(), 0)))
            .collect();
        // Every micro-step of a short run, some of a long one.
        for k in (0..epochs(order, 3).end * per_epoch).step_by(1 + per_epoch as usize / 7) {
            let (first, skip) = order.locate(k).unwrap();
            assert_eq!(first * per_epoch + skip, k);
            let mut resumed = Vec::new();
            for e in first..whole.len() as u64 {
                let from = if e == first { skip } else { 0 };
                resumed.push((e, samples(order, &order.epoch(e).unwrap(), from)));
            }
            let mut tail = whole[first as usize..].to_vec();
            tail[0].1.retain(|(place, _)| place.micro_step >= skip);
            assert_eq!(resumed, tail, "{what} at {k}");
        }
    });
}

#[test]
fn an_order_is_a_pure_function_of_seed_and_epoch() {
    every_order(|what, order| {
        let all = |order: &Arc<dyn Order>, e| samples(order, &order.epoch(e).unwrap(), 0);
        // From one object in any sequence, an earlier epoch still held or not, and from a fresh object.
        let second = epochs(order, 2).end - 1;
        let held = order.epoch(second).unwrap();
        let first: Vec<_> = epochs(order, 3).map(|e| all(order, e)).collect();
        for e in [1u64, 0, 1, 2, 1, 0]
            .into_iter()
            .filter(|&e| e < first.len() as u64)
        {
            assert_eq!(all(order, e), first[e as usize], "{what} epoch {e}");
        }
        assert_eq!(samples(order, &held, 0), first[second as usize], "{what}");
        let text = serde_json::to_string(order.spec()).unwrap();
        let spec: OrderSpec = serde_json::from_str(&text).unwrap();
        assert_eq!(&spec, order.spec(), "{text}");
        // None of the examples divides its micro-batch, so the order's layout is the one it was built for.
        if spec.entry().needs == Needs::Rows {
            let fresh = spec
                .build(&OrderInput::new(order.num_samples(), order.geometry()))
                .unwrap();
            for e in epochs(order, 3).skip(1) {
                assert_eq!(all(&fresh, e), first[e as usize], "{what}");
            }
        }
    });
}

#[test]
fn threads_that_ask_at_once_get_one_answer() {
    for entry in REGISTRY {
        // The last layout with several ranks that the order replays.
        let built = geometries().into_iter().rev().find_map(|geometry| {
            let order = build(entry, entry.examples[0], 103, geometry)?;
            (geometry.world_size > 1).then_some((geometry, order))
        });
        let Some((geometry, order)) = built else {
            panic!("{} does not build over 103 rows", entry.name);
        };
        let want: Vec<_> = epochs(&order, 4)
            .map(|e| samples(&order, &order.epoch(e).unwrap(), 0))
            .collect();
        let fresh = build(entry, entry.examples[0], 103, geometry).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..8u64 {
                let (fresh, want) = (&fresh, &want);
                scope.spawn(move || {
                    for round in 0..20 {
                        let e = (worker + round) % want.len() as u64;
                        assert_eq!(samples(fresh, &fresh.epoch(e).unwrap(), 0), want[e as usize]);
                    }
                });
            }
        });
    }
}

#[test]
fn full_global_batches_do_not_depend_on_how_they_are_factored() {
    // 24 samples a step, split in six ways.
    let splits = [
        (1, 24, 1),
        (2, 12, 1),
        (2, 3, 4),
        (8, 3, 1),
        (1, 1, 24),
        (4, 2, 3),
    ];
    for entry in REGISTRY {
        for example in entry.examples {
            let mut seen: Option<Vec<Vec<u64>>> = None;
            for (world_size, micro_batch_size, gradient_accumulation_steps) in splits {
                let geometry = Geometry {
                    world_size,
                    micro_batch_size,
                    gradient_accumulation_steps,
                };
                let Some(order) = build(entry, example, 103, geometry) else {
                    continue;
                };
                if !order.is_elastic() {
                    continue;
                }
                let epoch = order.epoch(epochs(&order, 2).end - 1).unwrap();
                let full = order.num_positions() / 24;
                let batches: Vec<Vec<u64>> = (0..full)
                    .map(|step| {
                        let deal = step * 24..(step + 1) * 24;
                        deal.map(|k| epoch.sample(epoch.place_of(k).unwrap()).unwrap())
                            .collect()
                    })
                    .collect();
                match &seen {
                    None => seen = Some(batches),
                    Some(first) => assert_eq!(&batches, first, "{example} {geometry:?}"),
                }
            }
        }
    }
}

#[test]
fn every_option_is_explained_and_every_example_reads_back() {
    for entry in REGISTRY {
        for text in [entry.summary, entry.source, entry.for_whom] {
            assert!(text.len() > 10, "{}", entry.name);
        }
        for option in entry.options {
            assert!(
                !option.help.is_empty() && !option.values.is_empty(),
                "{}.{}",
                entry.name,
                option.key
            );
        }
        for example in entry.examples {
            let spec: OrderSpec = serde_json::from_str(example).unwrap();
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<OrderSpec>(&json).unwrap(), spec);
            let yaml = serde_yaml::to_string(&spec).unwrap();
            assert_eq!(serde_yaml::from_str::<OrderSpec>(&yaml).unwrap(), spec, "{yaml}");
            // Nothing the order's own options hold is missing in its table.
            let listed = spec.options();
            for (key, _) in &listed {
                assert!(entry.option(key).is_some());
            }
        }
    }
}
