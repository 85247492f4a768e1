//! The environment of a program run by `exec`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::common::{objects, output_of, portolan, run, stderr, stdout};
use crate::compiler::{Compiled, exec};

/// The software devices, from the command's list.
fn devices() -> Vec<String> {
    let output = run(&["devices", "--provider", "software", "--json"]);
    let names = objects(&stdout(&output)).into_iter();
    names
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .collect()
}

/// The warning if a program cannot have its own view of sysfs.
const UNSEEN: &str = "sees no devices in /sys/class/infiniband";

/// Whether this user may create a mount namespace on this machine, according to util-linux.
fn may_have_a_view() -> bool {
    let options = match rustix::process::geteuid().as_raw() {
        0 => "-m",
        // `exec` creates none for this user, even if the machine permits it.
        65_534 => return false,
        _ => "-Urm",
    };
    let probe = Command::new("unshare").args([options, "true"]).output();
    probe.is_ok_and(|probe| probe.status.success())
}

#[test]
fn a_c_program_sees_the_software_devices_by_libibverbs_and_in_sysfs() {
    let compiled = Compiled::new("devices");
    let program = compiled.program("crates/cli/tests/c/devices.c");
    let output = output_of(exec(&program, &[]).spawn().unwrap());
    let (text, complaint) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{complaint}");
    let told = |by: &str| {
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|line| Some(line.strip_prefix(by)?.trim().to_owned()))
            .collect();
        names.sort();
        names
    };
    let mut expected = devices();
    expected.sort();
    assert!(!expected.is_empty());
    assert_eq!(told("verbs"), expected, "{complaint}");
    assert!(text.contains("event RDMA_CM_EVENT_ESTABLISHED"), "{text}");
    if !may_have_a_view() {
        assert!(complaint.contains(UNSEEN), "{complaint}");
        return;
    }
    assert_eq!(told("sysfs"), expected, "{complaint}");
}

#[test]
fn only_the_program_sees_the_folder_of_the_devices_and_the_rest_of_sysfs_stays() {
    let script = "ls /sys/class; cat /sys/class/infiniband/sw_lo/ports/1/gids/0; \
                  cat /sys/class/net/lo/mtu; touch /sys/class/infiniband/new 2>&1";
    let output = run(&["exec", "--", "sh", "-c", script]);
    let text = stdout(&output);
    if !may_have_a_view() {
        assert!(stderr(&output).contains(UNSEEN), "{}", stderr(&output));
        return;
    }
    assert!(!stderr(&output).contains(UNSEEN), "{}", stderr(&output));
    let here = std::fs::read_dir("/sys/class").unwrap();
    for class in here {
        let name = class.unwrap().file_name().into_string().unwrap();
        assert!(text.lines().any(|line| line == name), "no {name}: {text}");
    }
    assert!(text.lines().any(|line| line == "infiniband"), "{text}");
    let gid = "0000:0000:0000:0000:0000:ffff:7f00:0001";
    assert!(text.contains(gid), "{text}");
    let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
    assert!(text.contains(&mtu), "{text}");
    // The folder must not be writable.
    assert_eq!(output.status.code(), Some(1), "{text}");
    let still = std::path::Path::new("/sys/class/infiniband/sw_lo");
    assert!(!still.exists());
}

#[test]
fn only_the_program_sees_each_devices_file_in_dev_infiniband_and_the_rest_of_dev_stays() {
    let script = "for node in /dev/infiniband/*; do \
                    test -c $node -a -r $node -a -w $node && echo $node; \
                  done; \
                  cat $node 2>&1; echo anything > /dev/null && head -c 3 /dev/zero | wc -c; \
                  echo shared > /dev/shm/portolan-$$ && cat /dev/shm/portolan-$$ && rm /dev/shm/portolan-$$; \
                  ls /dev; test -e /sys/class/infiniband/sw_lo/device/net/lo/mtu && echo with interface";
    let output = run(&["exec", "--", "sh", "-c", script]);
    let (text, complaint) = (stdout(&output), stderr(&output));
    if !may_have_a_view() {
        assert!(complaint.contains("and /dev/infiniband"), "{complaint}");
        return;
    }
    let has = |wanted: &str| text.lines().any(|line| line == wanted);
    let lo = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
    assert!(
        has(&format!("/dev/infiniband/uverbs{}", lo.trim())),
        "{text}{complaint}"
    );
    assert!(text.contains("Permission denied"), "{text}");
    assert!(
        has("3") && has("shared") && has("with interface"),
        "{text}{complaint}"
    );
    for entry in std::fs::read_dir("/dev").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(has(&name), "no {name}: {text}");
    }
    assert!(!std::path::Path::new("/dev/infiniband").exists());
}

#[test]
fn a_program_can_open_a_pseudo_terminal() {
    let output = run(&["exec", "--", "script", "-qec", "test -t 0", "/dev/null"]);
    let (text, complaint) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{complaint}");
}

#[test]
fn a_misspelt_option_is_not_taken_for_the_program_and_options_of_the_program_are_its_own() {
    let output = run(&["exec", "--socket", "--", "true"]);
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("--sockets"), "{complaint}");
    let output = run(&["exec", "--no-sysfs", "echo", "-s", "--json", "--dry-run"]);
    assert_eq!(stdout(&output), "-s --json --dry-run\n");
}

#[test]
fn a_program_keeps_its_exit_code_its_signals_and_its_user() {
    let code = |script: &str| run(&["exec", "sh", "-c", script]).status;
    assert_eq!(code("exit 7").code(), Some(7));
    assert_eq!(code("kill -TERM $$").signal(), Some(15));
    let output = run(&["exec", "--", "id", "-u"]);
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(stdout(&output), format!("{user}\n"));
}

#[test]
fn a_program_ignores_sigpipe_if_and_only_if_exec_was_started_so() {
    const SIGPIPE: u64 = 1 << 12;
    let ignored = |before: &str| {
        let script =
            format!("{before} exec \"$0\" exec --no-sysfs -- grep SigIgn /proc/self/status");
        let shell = Command::new("sh")
            .args(["-c", &script])
            .arg(portolan().get_program())
            .stdout(Stdio::piped())
            .spawn();
        let text = stdout(&output_of(shell.unwrap()));
        let mask = text.trim().rsplit('\t').next().unwrap().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & SIGPIPE != 0
    };
    assert!(ignored("trap '' PIPE;"));
    assert!(!ignored(""));
}

#[test]
fn a_missing_program_is_127_and_one_that_cannot_be_run_126() {
    let missing = run(&["exec", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("no-such-program: no such program"));
    let unfit = run(&["exec", "--", "/etc/passwd"]);
    assert_eq!(unfit.status.code(), Some(126));
    assert!(stderr(&unfit).contains("/etc/passwd: not a program"));
    let script =
        std::env::temp_dir().join(format!("portolan-no-interpreter-{}", std::process::id()));
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let unfit = run(&["exec", "--", script.to_str().unwrap()]);
    std::fs::remove_file(&script).unwrap();
    assert_eq!(unfit.status.code(), Some(126), "{}", stderr(&unfit));
    assert!(
        stderr(&unfit).contains("no such interpreter"),
        "{}",
        stderr(&unfit)
    );
}

#[test]
fn our_libraries_precede_the_environments_and_a_dry_run_prints_everything() {
    let mut command = portolan();
    command
        .args(["exec", "--dry-run", "--json", "--", "sh"])
        .env("LD_LIBRARY_PATH", "/before");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output_of(command.spawn().unwrap());
    let told = &objects(&stdout(&output))[0];
    let path = told["environment"]["LD_LIBRARY_PATH"].as_str().unwrap();
    assert!(path.ends_with("/full:/before"), "{path}");
    assert_eq!(told["environment"]["PORTOLAN_PROVIDER"], "software");
    assert!(told["program"].as_str().unwrap().ends_with("/sh"), "{told}");
    let listed = told["sysfs"].as_array().unwrap();
    assert!(listed.iter().any(|name| name == "sw_lo"), "{told}");
    let nodes = told["dev_infiniband"].as_array().unwrap();
    assert_eq!(nodes.len(), listed.len(), "{told}");

    let own = stdout(&run(&["exec", "--dry-run", "sh"]));
    for place in ["/sys/class/infiniband", "/dev/infiniband"] {
        let line = own.lines().find(|line| line.starts_with(place));
        let line = line.unwrap_or_else(|| panic!("{own}"));
        assert!(
            line.contains("if this user may have a mount namespace"),
            "{line}"
        );
    }

    let machines = run(&["exec", "--libraries", "rdmacm", "--dry-run", "sh"]);
    let text = stdout(&machines);
    assert!(text.contains("/rdmacm"), "{text}");
    assert!(!text.contains("PORTOLAN_PROVIDER"), "{text}");
}

#[test]
fn a_provider_is_pinned_for_the_program_or_refused() {
    let alone = ["--libraries", "rdmacm", "--dry-run", "sh"];
    for name in ["software", "kernel"] {
        let pinned = run(&[&["--provider", name, "exec"], &alone[..]].concat());
        let text = stdout(&pinned);
        assert!(
            text.contains(&format!("PORTOLAN_PROVIDER={name}")),
            "{text}"
        );
    }
    let refused = run(&["--provider", "kernel", "exec", "--dry-run", "sh"]);
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("--libraries rdmacm"), "{text}");
}
