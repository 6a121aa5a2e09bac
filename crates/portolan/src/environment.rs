//! The variables of the process, looked through once at the start.

use std::sync::Once;

use portolan_device::env;
use portolan_kernels::OpKind;

use crate::Result;

/// Refuses a `PORTOLAN_` variable that cannot be read, and warns once of those that nothing reads. Whoever loads a model
/// by [`crate::Engine`] has it done; a program calls it to hear of a wrong variable before anything else happens.
///
/// # Errors
/// [`crate::Error::Variable`], with the name, the value and what would be right.
pub fn check_environment() -> Result<()> {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        env::warn_unknown();
        let names: Vec<String> = std::env::vars_os().filter_map(|(n, _)| n.into_string().ok()).collect();
        for name in unknown_ports(names.iter().map(String::as_str)) {
            tracing::warn!("{name} is set, but there is no such op; `portolan ports` lists them");
        }
    });
    Ok(env::check_all()?)
}

const PORT: &str = "PORTOLAN_PORT_";

/// The names among `names` that close or open the ports of an op which is not there.
fn unknown_ports<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let known: Vec<String> = OpKind::ALL.iter().map(|op| op.name().to_ascii_uppercase()).collect();
    let is_unknown = |op: &str| !op.is_empty() && !known.iter().any(|known| known == op);
    names.into_iter().filter(|name| name.strip_prefix(PORT).is_some_and(is_unknown)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpp_10091_a_switch_of_an_op_that_is_not_there_is_named() {
        let names = ["PORTOLAN_PORT_MATMUL", "PORTOLAN_PORT_MATMULL", "PORTOLAN_PORT_matmul", "PATH", PORT];
        assert_eq!(unknown_ports(names), ["PORTOLAN_PORT_MATMULL", "PORTOLAN_PORT_matmul"]);
    }
}
