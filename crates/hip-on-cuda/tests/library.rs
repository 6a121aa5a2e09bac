//! The library as Portolan opens it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{path::PathBuf, process::Command};

use libloading::Library;
use portolan_device::rocm::sys::{Hip, hipError_t};

/// The library that cargo built beside this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|f| f.join("libamdhip64_on_cuda.so"));
    places.into_iter().find(|path| path.exists()).unwrap()
}

#[test]
fn it_has_what_portolan_opens() {
    // SAFETY: nothing runs when it is opened.
    let library = unsafe { Library::new(built()) }.unwrap();
    let rtc = ["Version", "CreateProgram", "DestroyProgram", "CompileProgram", "GetProgramLogSize"];
    let rtc = rtc.into_iter().chain(["GetProgramLog", "GetCodeSize", "GetCode", "GetErrorString"]);
    let rtc: Vec<String> = rtc.map(|name| format!("hiprtc{name}")).collect();
    let rtc = rtc.iter().map(String::as_str);
    // HIP 5's struct of properties is not served: the later one is asked for first.
    let hip = Hip::REQUIRED.iter().chain(Hip::OPTIONAL).copied().filter(|n| *n != "hipGetDeviceProperties");
    for name in hip.chain(rtc) {
        // SAFETY: it is not called.
        assert!(unsafe { library.get::<unsafe extern "C" fn()>(name) }.is_ok(), "{name}");
    }
}

#[test]
fn without_a_driver_there_is_no_device() {
    // SAFETY: the driver's library runs constructors of its own, if it is there.
    let driver = unsafe { Library::new("libcuda.so.1") };
    let hip = Hip::open(&built()).unwrap();
    // SAFETY: no pointers.
    let started = unsafe { (hip.hipInit)(0) };
    let mut count = 0;
    // SAFETY: a pointer to an integer.
    let counted = unsafe { (hip.hipGetDeviceCount)(&mut count) };
    if driver.is_err() {
        assert_eq!((started, counted), (hipError_t::hipErrorNoDevice, hipError_t::hipErrorNoDevice));
    } else {
        assert_eq!(started, counted);
        assert!(started == hipError_t::hipErrorNoDevice || count > 0);
    }
}

#[test]
fn an_unknown_architecture_is_refused() {
    const NAME: &str = "HIP_ON_CUDA_ARCH";
    // The environment is the process's: this test runs again in one of its own.
    if std::env::var(NAME).is_ok_and(|set| set == "gfx90a") {
        // SAFETY: no pointers.
        let started = unsafe { (Hip::open(&built()).unwrap().hipInit)(0) };
        return assert_eq!(started.0, 1, "hipErrorInvalidValue");
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "an_unknown_architecture_is_refused"]).env(NAME, "gfx90a");
    assert!(again.status().unwrap().success());
}
