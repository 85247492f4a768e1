use super::*;

const SOURCE: &str = "
#[test]
fn it_holds() {
}

/// Awaited.
#[tokio::test(flavor = \"current_thread\")]
async fn it_is_awaited() {
}

proptest! {
    #[test]
    fn whatever_comes(byte: u8) {
    }
}

fn helper() {
}

#[test]
#[ignore]
fn it_rests() {
}

// #[test]
fn it_was_a_test() {
}
";

fn source(path: &str) -> Option<String> {
    (path == "a/b.rs").then(|| SOURCE.to_owned())
}

/// A file whose first page has these rows in its second section, and which is right elsewhere.
fn file(rows: &str) -> String {
    let mut text = format!(
        "# Promises\n\n## 1. {}\n\n### 1.1 NAME\n\n{NONE}\n\n",
        PAGES[0]
    );
    text += "### 1.2 ARGUMENTS\n\n| no. | promise | proved by |\n|---|---|---|\n";
    text += rows;
    for (at, page) in PAGES.iter().enumerate().skip(1) {
        let number = at + 1;
        text += &format!("\n## {number}. {page}\n\n### {number}.1 NAME\n\n{NONE}\n");
    }
    text
}

/// What is wrong with the rows.
fn faults(rows: &str) -> Vec<String> {
    let found = check(&file(rows), &source).faults;
    found.into_iter().map(|fault| fault.what).collect()
}

const GOOD: &str = "| 1.2.1 | It holds. | `a/b.rs::it_holds` |\n";

#[test]
fn promises_whose_tests_run_are_counted_and_right() {
    let rows = "| 1.2.1 | One. | `a/b.rs::it_holds`<br>`a/b.rs::it_is_awaited` |\n\
                | 1.2.2 | Two. | `a/b.rs::whatever_comes` |\n";
    let findings = check(&file(rows), &source);
    assert_eq!(findings.faults, []);
    assert_eq!((findings.promises, findings.tests.len()), (2, 3));
}

#[test]
fn a_promise_without_a_test_is_a_fault() {
    assert_eq!(
        faults("| 1.2.1 | It holds. | |\n"),
        ["promise 1.2.1 has no test"]
    );
    assert_eq!(faults("| 1.2.1 | It holds. |\n").len(), 1);
    assert_eq!(
        faults("| 1.2.1 | | `a/b.rs::it_holds` |\n"),
        ["promise 1.2.1 is empty"]
    );
    assert_eq!(faults("| 1.2.1 | It holds. | it_holds |\n").len(), 1);
    assert_eq!(faults("| 1.2.1 | It holds. | some day |\n").len(), 1);
}

#[test]
fn a_test_that_is_missing_or_does_not_run_is_a_fault() {
    for (test, why) in [
        ("a/c.rs::it_holds", "there is no file a/c.rs"),
        ("a/b.rs::it_hold", "it_hold does not exist"),
        ("a/b.rs::helper", "helper is not a test"),
        ("a/b.rs::it_was_a_test", "it_was_a_test is not a test"),
        ("a/b.rs::it_rests", "it_rests is ignored"),
    ] {
        let found = faults(&format!("| 1.2.1 | It holds. | `{test}` |\n"));
        assert!(
            found.len() == 1 && found[0].ends_with(why),
            "{test}: {found:?}"
        );
    }
}

#[test]
fn a_repeated_or_missing_number_is_a_fault() {
    let twice = faults(&GOOD.repeat(2));
    assert_eq!(twice, ["promise 1.2.1 where 1.2.2 is expected"]);
    let gap = faults(&(GOOD.to_owned() + &GOOD.replace("1.2.1", "1.2.3")));
    assert_eq!(gap, ["promise 1.2.3 where 1.2.2 is expected"]);
    let elsewhere = faults(&GOOD.replace("1.2.1", "1.3.1"));
    assert_eq!(elsewhere, ["promise 1.3.1 where 1.2.1 is expected"]);
}

#[test]
fn a_page_or_section_that_is_missing_empty_or_out_of_order_is_a_fault() {
    let right = file(GOOD);
    assert_eq!(check(&right, &source).faults, []);
    let broken = [
        right.replace(
            "## 3. rdma_resolve_addrinfo(3)\n\n### 3.1 NAME\n\nNo promises.\n",
            "",
        ),
        right.replace("## 4. ibv_gid_reachable(3)", "## 4. another"),
        right.replace("### 1.1 NAME", "### 1.2 NAME"),
        right.replace("### 5.1 NAME\n\nNo promises.\n", ""),
        right.replace("### 4.1 NAME\n\nNo promises.\n", "### 4.1 NAME\n"),
        right.replace("### 1.2 ARGUMENTS\n", "### 1.2 ARGUMENTS\n\nNo promises.\n"),
    ];
    for text in broken {
        assert_ne!(text, right);
        assert_ne!(check(&text, &source).faults, [], "{text}");
    }
}
