//! The conformance suite, made from the chart.
