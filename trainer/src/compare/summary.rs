//! Mean, median and sample standard deviation.

/// The mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median, the mean of the middle two of an even number; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The standard deviation of a sample (n − 1 below the line); `None` of fewer than two.
pub fn std(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = mean(values)?;
    let sum: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((sum / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_and_of_none() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(median(&[6.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[6.0, 1.0]), Some(3.5));
        assert_eq!(std(&[1.0, 3.0]), Some(2f64.sqrt()));
        assert_eq!((mean(&[]), median(&[]), std(&[1.0])), (None, None, None));
    }
}
