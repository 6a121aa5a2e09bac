//! The table of HIP's functions against the headers of a HIP that is installed: a C file that asserts the type of each
//! function and the number of each constant, and is compiled no further than that.
//!
//! In C, not in C++: there the headers overload some functions with templates that would take a wrong type too.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{clang, hip_table::Table};

/// Compilers for it, the first that is there.
const COMPILERS: [&str; 7] = ["clang-22", "clang-21", "clang-20", "clang-19", "clang", "cc", "gcc"];

/// The header with the functions.
const HEADER: &str = "include/hip/hip_runtime_api.h";

/// The function that has a struct of another version under the plain name: headers since HIP 6 rename it (an item of
/// LOCAL_FIXES.md), so it cannot be compared.
const RENAMED: &str = "hipGetDeviceProperties";
/// The function that it is renamed to, whose struct the table leaves untyped.
const WITH_STRUCT: &str = "hipGetDevicePropertiesR0600";
/// Bytes of that struct, and where the name of the architecture lies in it, as the device reads it.
const STRUCT: (usize, usize) = (1472, 1160);

/// The headers of a HIP that is installed.
pub(super) fn installed() -> Option<PathBuf> {
    let named = ["HIP_PATH", "ROCM_PATH"].map(|name| std::env::var_os(name).map(PathBuf::from));
    let roots = named.into_iter().flatten().chain([PathBuf::from("/opt/rocm")]);
    roots
        .map(|root| root.join(HEADER))
        .find(|header| header.is_file())?
        .ancestors()
        .nth(2)
        .map(Path::to_owned)
}

/// The version that the headers in a folder are of: `7.1`.
pub(super) fn version(include: &Path) -> String {
    let text = fs::read_to_string(include.join("hip/hip_version.h")).unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("#define ")?.strip_prefix(name));
        line.map_or("?", str::trim).to_owned()
    };
    format!("{}.{}", number("HIP_VERSION_MAJOR "), number("HIP_VERSION_MINOR "))
}

/// What in the table is not as the headers in a folder declare it. None where there is no compiler.
///
/// # Errors
/// If the compiler cannot be run.
pub(super) fn check(table: &Table, include: &Path) -> Result<Option<Vec<String>>> {
    let Some(compiler) = COMPILERS.iter().find(|name| clang::version(name).is_some()) else {
        return Ok(None);
    };
    let folder = tempfile::tempdir().context("cannot make a folder for the compiler")?;
    let file = folder.path().join("abi.c");
    fs::write(&file, assertions(table)).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-fsyntax-only", "-w"]).arg("-isystem").arg(include).arg(&file);
    let output = command.output().with_context(|| format!("cannot run {compiler}"))?;
    if output.status.success() {
        return Ok(Some(Vec::new()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let errors = said.lines().filter_map(|line| line.split_once("error: ").map(|(_, what)| what.to_owned()));
    let mut findings: Vec<_> = errors.map(|what| format!("HIP {}: {what}", version(include))).collect();
    if findings.is_empty() {
        findings.push(format!("{compiler}: {}: {}", output.status, said.trim()));
    }
    Ok(Some(findings))
}

/// The C file.
fn assertions(table: &Table) -> String {
    let mut text =
        "#define __HIP_PLATFORM_AMD__ 1\n#include <stddef.h>\n#include <hip/hip_runtime_api.h>\n".to_owned();
    let mut add = |condition: String, what: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "_Static_assert({condition}, \"{what}\");");
    };
    for (name, arguments) in table.functions.iter().filter(|(name, _)| name != RENAMED) {
        let mut arguments = arguments.join(", ");
        if name == WITH_STRUCT {
            arguments = arguments.replacen("void *", "hipDeviceProp_t *", 1);
        }
        let kind = format!("hipError_t (*)({arguments})");
        let same = format!("__builtin_types_compatible_p(__typeof__(&{name}), {kind})");
        add(same, &format!("{name} is not {kind}"));
    }
    for (name, number) in &table.constants {
        add(format!("{name} == {number}"), &format!("{name} is not {number}"));
    }
    for name in &table.enums {
        add(format!("sizeof({name}) == 4"), &format!("{name} has not four bytes"));
    }
    if table.functions.iter().any(|(name, _)| name == WITH_STRUCT) {
        let (bytes, name_at) = STRUCT;
        add(format!("sizeof(hipDeviceProp_t) == {bytes}"), "hipDeviceProp_t has another size");
        let at = format!("offsetof(hipDeviceProp_t, gcnArchName) == {name_at}");
        add(at, "gcnArchName is at another place of hipDeviceProp_t");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tree::sample, verify_rocm::hip_table};

    /// What a header declares for the sample table.
    const DECLARED: &str = "#include <stddef.h>\n\
        typedef enum { hipSuccess = 0, hipErrorOutOfMemory = 2 } hipError_t;\n\
        typedef enum { hipMemcpyDefault = 4 } hipMemcpyKind;\n\
        typedef struct ihipStream_t *hipStream_t;\n\
        #define hipStreamNonBlocking 0x01\n\
        hipError_t hipInit(unsigned int flags);\n\
        hipError_t hipMemcpyAsync(void *dst, const void *src, size_t bytes, hipMemcpyKind kind, hipStream_t stream);\n\
        hipError_t hipMalloc(void **address, size_t bytes);\n";

    #[track_caller]
    fn check_found(table: &str, header: &str, says: &[&str]) {
        let files =
            [("hip/hip_runtime_api.h", header), ("hip/hip_version.h", "#define HIP_VERSION_MAJOR 7\n")];
        let dir = sample(&files);
        let Some(found) = check(&hip_table::read(table).unwrap(), dir.path()).unwrap() else {
            return portolan_testkit::skipped("no C compiler");
        };
        assert_eq!(found.len(), says.len(), "{found:?}");
        for (found, says) in found.iter().zip(says) {
            assert!(found.contains(says), "{found}");
        }
    }

    #[test]
    fn a_table_that_differs_from_the_headers_is_found() {
        let table = hip_table::SAMPLE;
        check_found(table, DECLARED, &[]);
        // A type changed in the table.
        check_found(
            &table.replace("flags: c_uint", "flags: c_int"),
            DECLARED,
            &["hipInit is not hipError_t (*)(int)"],
        );
        check_found(&table.replace("src: *const", "src: *mut"), DECLARED, &["hipMemcpyAsync is not"]);
        check_found(&table.replace("bytes: usize);", "bytes: c_uint);"), DECLARED, &["hipMalloc is not"]);
        check_found(
            &table.replace("OutOfMemory = 2", "OutOfMemory = 3"),
            DECLARED,
            &["hipErrorOutOfMemory is not 3"],
        );
        check_found(&table.replace("c_uint = 1", "c_uint = 2"), DECLARED, &["hipStreamNonBlocking is not 2"]);
        // What the headers no longer have.
        check_found(table, &DECLARED.replace("hipInit(", "hipStart("), &["hipInit"]);
    }

    #[test]
    fn the_version_is_read() {
        let text = "#define HIP_VERSION_MAJOR 7\n#define HIP_VERSION_MINOR 1\n";
        assert_eq!(version(sample(&[("hip/hip_version.h", text)]).path()), "7.1");
        assert_eq!(version(sample(&[]).path()), "?.?");
    }
}
