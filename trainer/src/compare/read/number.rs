//! Numbers as logs print them.

/// Decimals of a loss that are worth printing.
pub(crate) const MOST_DECIMALS: u8 = 4;

/// A number with what its text says of its precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Logged {
    /// The value.
    pub value: f64,
    /// Decimals given.
    pub decimals: u8,
}

impl Logged {
    /// Reads `8.31`, `1.192253E+01`, `nan`, `Infinity`.
    pub(crate) fn parse(text: &str) -> Option<Logged> {
        let value = text.parse::<f64>().ok()?;
        Some(Logged {
            value,
            decimals: decimals(text),
        })
    }

    /// A number that comes with all its bits.
    pub(crate) fn exact(value: f64) -> Logged {
        Logged {
            value,
            decimals: MOST_DECIMALS,
        }
    }

    /// The quotient bears as many significant digits as the logged number.
    pub(crate) fn divided_by(self, divisor: f64) -> Logged {
        let value = self.value / divisor;
        if divisor == 1.0 || value == 0.0 || !value.is_finite() {
            return Logged { value, ..self };
        }
        let gained = self.value.abs().log10().floor() - value.abs().log10().floor();
        let decimals = (f64::from(self.decimals) + gained).clamp(0.0, 17.0);
        Logged {
            value,
            decimals: decimals as u8,
        }
    }
}

/// Digits behind the point, the exponent counted in: `1.192253E+01` gives five.
fn decimals(text: &str) -> u8 {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().unwrap_or(0)),
        None => (text, 0),
    };
    let given = mantissa
        .split_once('.')
        .map_or(0, |(_, d)| d.len().min(400) as i32);
    given.saturating_sub(exponent).clamp(0, 17) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_those_that_the_log_gives() {
        for (text, value, decimals) in [
            ("8.31", 8.31, 2),
            ("1.192253E+01", 11.92253, 5),
            ("6.548988E-03", 0.006_548_988, 9),
            ("12", 12.0, 0),
            ("1e3", 1000.0, 0),
        ] {
            assert_eq!(Logged::parse(text), Some(Logged { value, decimals }), "{text}");
        }
        assert!(Logged::parse("nan").is_some_and(|n| n.value.is_nan()));
        assert_eq!(Logged::parse("Infinity").map(|n| n.value), Some(f64::INFINITY));
        assert_eq!(Logged::parse("1.2/1.3"), None);
        assert_eq!(Logged::parse(""), None);
    }

    #[test]
    fn a_divided_loss_keeps_its_significant_digits() {
        let loss = Logged::parse("95.7232").map(|n| n.divided_by(8.0));
        assert_eq!(
            loss,
            Some(Logged {
                value: 11.9654,
                decimals: 4
            })
        );
        // 59.77 has four digits: so has 7.471.
        assert_eq!(
            Logged::parse("59.77").map(|n| n.divided_by(8.0).decimals),
            Some(3)
        );
    }
}
