use super::*;
use crate::diff::amounts::{EditKind, interpret};

fn kind(a: &[u32], b: &[u32]) -> Option<EditKind> {
    let bound = a.iter().chain(b).max().map_or(0, |max| max + 1);
    let (in_a, in_b) = (Positions::of(a, bound), Positions::of(b, bound));
    let found = edits(a, b, &in_a, &in_b, 8, REPLACED)?;
    Some(interpret(a, b, &found, &in_a, &in_b))
}

#[test]
fn single_edits_are_named() {
    let a: Vec<u32> = (0..100).collect();
    let mut swapped = a.clone();
    swapped.swap(10, 40);
    assert_eq!(kind(&a, &swapped), Some(EditKind::Swapped(vec![(10, 40)])));
    let mut neighbours = a.clone();
    neighbours.swap(10, 11);
    assert_eq!(kind(&a, &neighbours), Some(EditKind::Swapped(vec![(10, 11)])));

    let ahead: Vec<u32> = (1..100).chain([0]).collect();
    assert_eq!(kind(&a, &ahead), Some(EditKind::Shifted(1)));
    assert_eq!(kind(&a, &a[1..]), Some(EditKind::Shifted(1)));
    let behind: Vec<u32> = [200].into_iter().chain(0..99).collect();
    assert_eq!(kind(&a, &behind), Some(EditKind::Shifted(-1)));
    assert_eq!(kind(&a, &a[40..]), Some(EditKind::Shifted(40)));

    let mut duplicate = a.clone();
    duplicate.insert(51, 50);
    let expected = |at, also_at, instead_of| EditKind::Duplicated {
        at,
        also_at,
        count: 1,
        instead_of,
    };
    assert_eq!(kind(&a, &duplicate), Some(expected(51, 50, None)));
    duplicate.truncate(100);
    assert_eq!(kind(&a, &duplicate), Some(expected(51, 50, None)));
    let mut replaced = a.clone();
    replaced[60] = 3;
    assert_eq!(kind(&a, &replaced), Some(expected(60, 3, Some(60))));

    let mut missing = a.clone();
    missing.remove(70);
    assert_eq!(kind(&a, &missing), Some(EditKind::Missing { at: 70, count: 1 }));
    missing.push(0);
    assert_eq!(kind(&a, &missing), Some(EditKind::Missing { at: 70, count: 1 }));

    let mut moved = a.clone();
    let sample = moved.remove(20);
    moved.insert(80, sample);
    assert_eq!(
        kind(&a, &moved),
        Some(EditKind::Moved {
            from: 20,
            to: 80,
            count: 1
        })
    );
    let mut other = a.clone();
    other[30] = 500;
    assert_eq!(kind(&a, &other), Some(EditKind::Replaced(vec![30])));
    assert_eq!(kind(&a, &a[..90]), Some(EditKind::Missing { at: 90, count: 10 }));
}

#[test]
fn another_order_is_not_a_few_edits() {
    let a: Vec<u32> = (0..100).collect();
    let b: Vec<u32> = (0..100).map(|i| i * 37 % 101 % 100).collect();
    assert_eq!(kind(&a, &b), None);
}

#[test]
fn two_changes_are_seen_however_far_apart() {
    let a: Vec<u32> = (0..400).collect();
    for distance in 1..40 {
        let mut swapped = a.clone();
        swapped.swap(100, 100 + distance);
        let pairs = vec![(100, 100 + distance)];
        assert_eq!(kind(&a, &swapped), Some(EditKind::Swapped(pairs)), "{distance}");
        let mut replaced = a.clone();
        (replaced[100], replaced[100 + distance]) = (1000, 1001);
        let places = vec![100, 100 + distance];
        assert_eq!(
            kind(&a, &replaced),
            Some(EditKind::Replaced(places)),
            "{distance}"
        );
        let mut cut = a.clone();
        cut.remove(100 + distance);
        cut.remove(100);
        let expected = if distance == 1 {
            EditKind::Missing { at: 100, count: 2 }
        } else {
            EditKind::Several
        };
        assert_eq!(kind(&a, &cut), Some(expected), "{distance}");
    }
}

#[test]
fn a_list_turned_round_is_no_shift() {
    let a: Vec<u32> = (0..1000).collect();
    let turned: Vec<u32> = a.iter().rev().copied().collect();
    assert_eq!(kind(&a, &turned), None);
    let mut end = a.clone();
    end[988..].reverse();
    assert!(!matches!(
        kind(&a, &end),
        Some(EditKind::Missing { .. } | EditKind::Shifted(_))
    ));
    let rolled: Vec<u32> = (1..1000).chain([0]).collect();
    assert_eq!(kind(&a, &rolled), Some(EditKind::Shifted(1)));
}

#[test]
fn repeats_are_no_hindrance() {
    // Three epochs of one list, the last with a swap.
    let a: Vec<u32> = (0..3).flat_map(|_| 0..200).collect();
    let mut b = a.clone();
    b.swap(450, 462);
    assert_eq!(kind(&a, &b), Some(EditKind::Swapped(vec![(450, 462)])));
    let mut cut = a.clone();
    cut.remove(300);
    assert_eq!(kind(&a, &cut), Some(EditKind::Missing { at: 300, count: 1 }));
}
