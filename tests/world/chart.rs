//! The chart in `deploy/chart`: what Helm's engine makes of it, and whether Kubernetes and a host take that.
//!
//! In: values. Out: the objects that are rendered, and what lints, schemas and real hosts say of them.
//! `chart.py` asks Helm, which `scripts/from-pypi.sh` fetches. Not here: a cluster.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::alerts::program;
use super::deploy::{documents, found, root, strings, text};
use super::support::bench::tqhost;
use super::support::files::{self, loaded};
use super::support::{Bench, Host, eventually, http};

/// The oldest and the newest Kubernetes whose schemas are at hand. The chart needs the first one.
const KUBERNETES: [&str; 2] = ["1.25", "1.37"];
/// The names that the chart asks for in the environment, and a value for each.
const SECRETS: [(&str, &str); 3] = [
    ("REDIS_URL", "redis://redis:6379"),
    ("TQHOST_ADMIN_TOKEN", "secret-of-the-admin"),
    ("TQHOST_READ_TOKEN", "open-to-the-readers"),
];

fn chart() -> PathBuf {
    root().join("deploy/chart")
}

/// Asks `chart.py` about each of these values.
fn ask(chart: &Path, versions: &[&str], values: &Value) -> Vec<Value> {
    let mut script = Command::new(root().join("scripts/from-pypi.sh"));
    let folder = script.arg("chart").stdin(Stdio::null()).output().expect("run from-pypi.sh");
    assert!(folder.status.success(), "{}", String::from_utf8_lossy(&folder.stderr));
    let folder = String::from_utf8(folder.stdout).expect("UTF-8");
    let mut python = Command::new(Path::new(folder.trim_end()).join("python3"));
    python.arg(root().join("tests/world/chart.py")).arg(chart).args(versions);
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run Python");
    child.stdin.take().expect("a pipe").write_all(values.to_string().as_bytes()).expect("write the values");
    let output = child.wait_with_output().expect("run Python");
    assert!(output.status.success(), "chart.py failed");
    let Value::Array(answers) = serde_json::from_slice(&output.stdout).expect("JSON") else {
        panic!("a list")
    };
    answers
}

/// The objects that these values make.
fn objects(values: Value) -> Vec<Value> {
    let answers = ask(&chart(), &[], &json!([values]));
    answers[0]["objects"].as_array().unwrap_or_else(|| panic!("{}", answers[0]["refused"])).clone()
}

/// The one object of this kind.
#[track_caller]
fn one<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    let all: Vec<&Value> = objects.iter().filter(|object| object["kind"] == kind).collect();
    let [object] = all[..] else { panic!("not one {kind}: {all:?}") };
    object
}

fn config(objects: &[Value]) -> String {
    one(objects, "ConfigMap")["data"]["tqhost.toml"].as_str().expect("a text").to_owned()
}

/// The configuration with what this machine has in place of the pod's secrets, folders and address.
fn at_home(config: &str, dir: &Path, url: &str) -> String {
    let mut text = config.to_owned();
    for (name, value) in SECRETS {
        let value = if name == "REDIS_URL" { url } else { value };
        text = text.replace(&format!("{{ env = \"{name}\" }}"), &format!("\"{value}\""));
    }
    for (folder, name) in [("\"/plugins\"", "plugins"), ("\"/data/host\"", "data")] {
        assert!(text.contains(folder), "{text}");
        text = text.replace(folder, &format!("{:?}", dir.join(name)));
    }
    text.replace("0.0.0.0:7700", "127.0.0.1:0")
}

/// Values with everything that is optional, but for the other sources of plugins.
fn everything() -> Value {
    json!({
        "replicaCount": 3,
        "image": {
            "repository": "registry.example.com:5000/tqhost",
            "digest": format!("sha256:{}", "0".repeat(64)),
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{ "name": "registry" }],
        "fullnameOverride": "jobs",
        "config": "concurrency = 50\n\n[redis]\nurl = { env = \"REDIS_URL\" }\nwait = \"1m\"\n\n[admin]\n\
            listen = \"[::]:7700\"\ntoken = { env = \"TQHOST_ADMIN_TOKEN\" }\nbase_path = \"/tqhost\"\n\n\
            [queues.mail]\n",
        // Kubernetes takes such a name; YAML would make a number of it.
        "existingSecret": "123",
        "extraEnv": [{ "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "models", "key": "key" } } }],
        "extraEnvFrom": [{ "secretRef": { "name": "models" } }],
        "terminationGracePeriodSeconds": 615,
        "resources": { "limits": { "cpu": 4 } },
        "podSecurityContext": { "fsGroup": 10002 },
        "serviceAccount": { "name": "runner", "annotations": { "example.com/role": "blobs" } },
        "service": { "type": "LoadBalancer", "port": 80, "annotations": { "example.com/internal": "true" } },
        "podDisruptionBudget": { "maxUnavailable": "25%" },
        "podMonitor": { "enabled": true, "interval": "1m", "labels": { "release": "prometheus" } },
        "autoscaling": {
            "enabled": true,
            "minReplicas": 3,
            "maxReplicas": 30,
            "targetTasks": 50,
            "streams": ["mail", "resume:analyze:stream"],
            "redisMetadata": { "enableTLS": "true" },
            "prometheusAddress": "http://prometheus.monitoring:9090",
        },
        "nodeSelector": { "disk": "ssd" },
        "tolerations": [{ "key": "jobs", "operator": "Exists" }],
        "affinity": { "nodeAffinity": {} },
        "podAnnotations": { "example.com/team": "jobs" },
        "podLabels": { "team": "jobs" },
        "extraVolumes": [{ "name": "ca", "secret": { "secretName": "ca" } }],
        "extraVolumeMounts": [{ "name": "ca", "mountPath": "/etc/redis", "readOnly": true }],
    })
}

#[test]
fn every_option_is_rendered_and_is_valid_for_kubernetes() {
    let init = json!({ "source": "initContainer", "image": { "reference": "handlers:1" } });
    let scaler = |more: Value| {
        let mut values = json!({ "enabled": true });
        values.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        json!({ "autoscaling": values })
    };
    let values = json!([
        {},
        everything(),
        { "plugins": init },
        { "plugins": { "source": "configMap", "configMap": "handlers" } },
        { "serviceAccount": { "create": false }, "podDisruptionBudget": { "enabled": false } },
        { "topologySpreadConstraints": [], "podMonitor": { "enabled": true } },
        scaler(json!({ "streams": ["mail"] })),
        scaler(json!({ "streams": ["mail"], "redisLogin": false })),
        scaler(json!({ "prometheusAddress": "http://prometheus:9090" })),
        { "plugins": { "source": "none" } },
    ]);
    let kinds = |answer: &Value| -> Vec<String> {
        strings(answer["objects"].as_array().unwrap_or_else(|| panic!("{answer}")), "kind")
    };
    let answers = ask(&chart(), &KUBERNETES, &values);
    for (answer, values) in answers.iter().zip(values.as_array().expect("a list")) {
        assert_eq!(answer["lint"], json!([]), "{values}");
        assert_eq!(answer["problems"], json!([]), "{values}");
        assert!(kinds(answer).contains(&"Deployment".to_owned()), "{answer}");
        assert!(answer["notes"].as_str().is_some_and(|notes| notes.contains("port-forward")), "{answer}");
    }
    let least = ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"];
    assert_eq!(kinds(&answers[0]), least);
    let all: BTreeSet<String> = kinds(&answers[1]).into_iter().collect();
    let more = ["PodMonitor", "ScaledObject", "TriggerAuthentication"];
    assert_eq!(all, least.iter().chain(&more).map(|kind| (*kind).to_owned()).collect());
    assert_eq!(kinds(&answers[4]), ["ConfigMap", "Deployment", "Service"]);
    for without_login in &answers[7..] {
        assert!(!kinds(without_login).contains(&"TriggerAuthentication".to_owned()), "{without_login}");
    }

    // A volume of an image is newer than the oldest Kubernetes.
    let image = json!([{ "plugins": { "source": "image", "image": { "reference": "handlers:1" } } }]);
    assert_eq!(ask(&chart(), &KUBERNETES[1..], &image)[0]["problems"], json!([]));
    assert_ne!(ask(&chart(), &KUBERNETES[..1], &image)[0]["problems"], json!([]));
}

#[test]
fn mistakes_in_templates_are_found_by_the_schemas_of_kubernetes() {
    let dir = tempfile::tempdir().expect("a folder");
    let copied = Command::new("cp").arg("-R").arg(chart()).arg(dir.path()).status().expect("run cp");
    assert!(copied.success());
    let copy = dir.path().join("chart");
    let mistakes = [
        ("deployment.yaml", "Deployment", "periodSeconds: 10", "periodSecond: 10"),
        ("service.yaml", "Service", "targetPort: admin", "targetPort: [admin]"),
        ("podmonitor.yaml", "PodMonitor", "jobLabel:", "joblabel:"),
        ("scaledobject.yaml", "ScaledObject", "maxReplicaCount:", "maxReplicas:"),
        ("scaledobject.yaml", "TriggerAuthentication", "parameter: username", "parameters: username"),
    ];
    for (file, _, from, to) in mistakes {
        let path = copy.join("templates").join(file);
        let text = fs::read_to_string(&path).expect("a template");
        assert!(text.contains(from), "{file}: {from}");
        fs::write(&path, text.replace(from, to)).expect("write");
    }
    let answer = ask(&copy, &KUBERNETES[1..], &json!([everything()])).remove(0);
    let problems = answer["problems"].as_array().expect("problems");
    let of_kind = |kind: &str| {
        problems.iter().filter(|text| text.as_str().is_some_and(|text| text.starts_with(kind))).count()
    };
    for (_, kind, _, to) in mistakes {
        assert_eq!(of_kind(kind), 1, "{to}: {problems:?}");
    }
}

#[test]
fn wrong_values_are_refused_with_the_name_of_the_field() {
    let with = |text: &str| json!({ "config": text });
    let plugins = |more: Value| json!({ "plugins": more });
    let table = [
        (json!({ "replicas": 3 }), "'replicas' not allowed"),
        (json!({ "replicaCount": "3" }), "/replicaCount"),
        (json!({ "image": { "name": "tqhost" } }), "/image"),
        (json!({ "image": { "digest": "sha256:1" } }), "/image/digest"),
        (json!({ "image": { "pullPolicy": "Sometimes" } }), "/image/pullPolicy"),
        (json!({ "existingSecret": "TQHOST" }), "/existingSecret"),
        (json!({ "config": { "queues": {} } }), "/config"),
        (json!({ "extraEnv": { "LLM_KEY": "x" } }), "/extraEnv"),
        (json!({ "extraEnv": [{ "value": "x" }] }), "/extraEnv/0"),
        (json!({ "terminationGracePeriodSeconds": "45s" }), "/terminationGracePeriodSeconds"),
        (json!({ "terminationGracePeriodSeconds": 14 }), "/terminationGracePeriodSeconds"),
        (json!({ "service": { "type": "External" } }), "/service/type"),
        (json!({ "service": { "port": 70000 } }), "/service/port"),
        (json!({ "podDisruptionBudget": { "maxUnavailable": 0 } }), "/podDisruptionBudget/maxUnavailable"),
        (json!({ "podMonitor": { "interval": 15 } }), "/podMonitor/interval"),
        (json!({ "autoscaling": { "minReplicas": 0 } }), "/autoscaling/minReplicas"),
        (json!({ "autoscaling": { "streams": "mail" } }), "/autoscaling/streams"),
        (
            json!({ "autoscaling": { "prometheusAddress": "prometheus:9090" } }),
            "/autoscaling/prometheusAddress",
        ),
        (json!({ "podLabels": { "a": 1 } }), "/podLabels/a"),
        (plugins(json!({ "source": "oci" })), "/plugins/source"),
        (plugins(json!({ "image": { "path": "/plugins" } })), "/plugins/image/path"),
        (plugins(json!({ "image": { "path": "a/../b" } })), "/plugins/image/path"),
        // Values that do not fit each other.
        (plugins(json!({ "existingClaim": "" })), "plugins.existingClaim: must be"),
        (plugins(json!({ "source": "configMap" })), "plugins.configMap: must be"),
        (plugins(json!({ "source": "image" })), "plugins.image.reference: must be"),
        (
            plugins(json!({ "source": "initContainer", "image": { "reference": "a", "path": "" } })),
            "plugins.image.path: must be",
        ),
        (json!({ "autoscaling": { "enabled": true } }), "autoscaling.streams: must"),
        (
            json!({ "autoscaling": { "enabled": true, "streams": ["a"], "maxReplicas": 1 } }),
            "autoscaling.maxReplicas: must",
        ),
        (with("data_dir = \"/tmp\"\n[queues.a]\n"), "config: leave out data_dir"),
        (with("shutdown_grace=\"1m\"\n[queues.a]\n"), "config: leave out shutdown_grace"),
        (with("[queues.a]\n[admin]\nlisten = \"127.0.0.1:7700\"\n"), "config: listen = \"127.0.0.1:7700\""),
        (with("[queues.a]\n[admin]\nlisten = \"0.0.0.0:80\"\n"), "config: listen = \"0.0.0.0:80\""),
    ];
    let values: Vec<&Value> = table.iter().map(|(values, _)| values).collect();
    for (answer, (values, field)) in ask(&chart(), &[], &json!(values)).iter().zip(&table) {
        let refused = answer["refused"].as_str().unwrap_or_else(|| panic!("{values} was taken"));
        assert!(refused.contains(field), "{values}: {refused}");
    }
}

#[test]
fn every_value_has_a_comment_and_is_in_the_schema() {
    /// The names at this place, and in the maps whose names the schema has.
    fn names(at: &str, value: &Value, schema: &Value, all: &mut BTreeSet<String>) {
        let Some(known) = schema["properties"].as_object() else { return };
        let is_ours = |name: &&String| at != "resources" && *name != "global";
        let known: BTreeSet<&String> = known.keys().filter(is_ours).collect();
        if at == "resources" {
            return;
        }
        assert_eq!(value.as_object().expect("a map").keys().collect::<BTreeSet<_>>(), known, "{at}");
        assert_eq!(schema["additionalProperties"], json!(false), "{at}");
        for name in known {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            names(&path, &value[name], &schema["properties"][name], all);
            all.insert(path);
        }
    }
    let schema = fs::read_to_string(chart().join("values.schema.json")).expect("the schema");
    let schema = serde_json::from_str(&schema).expect("JSON");
    let mut all = BTreeSet::new();
    names("", &documents("chart/values.yaml")[0], &schema, &mut all);

    let values = text("chart/values.yaml");
    let (mut before, mut above): (&str, Vec<&str>) = ("", Vec::new());
    for line in values.lines() {
        let key =
            line.trim_start().split_once(':').map(|(key, _)| key).filter(|key| !key.contains(['#', ' ']));
        if let Some(key) = key {
            above.truncate((line.len() - line.trim_start().len()) / 2);
            above.push(key);
            let is_told = before.trim_start().starts_with("# ");
            assert!(!all.remove(&above.join(".")) || is_told, "there is no comment above {line:?}");
        }
        before = line;
    }
    assert_eq!(all, BTreeSet::new(), "values that were not found in the file");
}

#[test]
fn versions_of_the_chart_and_the_program_are_the_same() {
    let about = documents("chart/Chart.yaml").remove(0);
    for key in ["version", "appVersion"] {
        assert_eq!(about[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
    let deployment = objects(json!({}));
    let image = &one(&deployment, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &format!("tqhost:{}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn configurations_of_the_chart_are_good_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("tqhost.toml");
    let queues_alone = json!({ "config": "concurrency = 5\n[queues.mail]\n[admin.tokens]\n" });
    let told = text("README.md");
    let example =
        told.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example");
    fs::write(dir.path().join("values.yaml"), example.0).expect("write");
    let example = documents(dir.path().join("values.yaml").to_str().expect("a path")).remove(0);
    for (values, grace) in [
        (json!({}), 30),
        (example, 30),
        (json!({ "terminationGracePeriodSeconds": 15 }), 0),
        (queues_alone, 30),
        (everything(), 600),
    ] {
        let all = objects(values.clone());
        let text = config(&all);
        assert!(text.contains(&format!("shutdown_grace = \"{grace}s\"\n")), "{text}");
        assert_eq!(text.matches("\n[redis]\n").count(), 1, "{text}");
        let pod = &one(&all, "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["terminationGracePeriodSeconds"].as_u64(), Some(grace + 15), "{values}");
        fs::write(&file, at_home(&text, dir.path(), SECRETS[0].1)).expect("write");
        let said = tqhost(&file, &["check"]).ok().stdout;
        assert!(said.contains("redis://redis:6379"), "{said}");
    }
}

#[test]
fn the_deployment_fits_the_host_and_the_other_objects() {
    let all = objects(json!({
        "podMonitor": { "enabled": true },
        "autoscaling": { "enabled": true, "streams": ["resume:analyze:stream"] },
    }));
    let [deployment, monitor, login, scaler] =
        ["Deployment", "PodMonitor", "TriggerAuthentication", "ScaledObject"].map(|kind| one(&all, kind));
    let name = |document: &Value| document["metadata"]["name"].clone();
    let template = &deployment["spec"]["template"];
    let pod = &template["spec"];
    let container = &pod["containers"][0];

    // The secret has the keys that are asked of it, and no others, in each place that tells of them.
    let (mut asked, mut keys) = (Vec::new(), BTreeSet::new());
    found(deployment, "secretKeyRef", &mut asked);
    found(monitor, "credentials", &mut asked);
    asked.extend(login["spec"]["secretTargetRef"].as_array().expect("a list"));
    for reference in asked {
        assert_eq!(reference["name"], "tqhost", "{reference}");
        keys.insert(reference["key"].as_str().expect("a key").to_owned());
    }
    let told = text("README.md");
    let made = told.split("--from-literal=").skip(1).filter_map(|rest| rest.split_once('='));
    assert_eq!(keys, made.map(|(key, _)| key.to_owned()).collect());
    let values = text("chart/values.yaml");
    assert!(keys.iter().all(|key| values.contains(&format!("`{key}`"))), "{keys:?}");

    // The environment has what the configuration and the scaler ask for.
    let env: BTreeSet<String> =
        strings(container["env"].as_array().expect("a list"), "name").into_iter().collect();
    let text_of_config = config(&all);
    let wanted = text_of_config.split("env = \"").skip(1).filter_map(|rest| rest.split_once('"'));
    let wanted: BTreeSet<&str> = wanted.map(|(name, _)| name).collect();
    assert_eq!(wanted, SECRETS.map(|(name, _)| name).into_iter().collect());
    assert!(wanted.iter().all(|name| env.contains(*name)), "{env:?}");
    let trigger = &scaler["spec"]["triggers"][0];
    assert!(env.contains(trigger["metadata"]["addressFromEnv"].as_str().expect("a name")));
    assert_eq!(trigger["authenticationRef"]["name"], name(login));
    assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], name(deployment));
    let stream = format!("stream = {}", trigger["metadata"]["stream"]);
    assert!(text_of_config.contains(&stream), "{stream}");

    // The scaler, or else the number of replicas, says how many hosts there are.
    let alone = objects(json!({}));
    let (spec, alone) = (&deployment["spec"], &one(&alone, "Deployment")["spec"]);
    assert_eq!((&scaler["spec"]["minReplicaCount"], spec.get("replicas")), (&alone["replicas"], None));
    assert_eq!(alone["replicas"], 2);
    assert_eq!(spec["strategy"]["rollingUpdate"], json!({ "maxUnavailable": 0, "maxSurge": 1 }));

    // Labels and volumes are those that others look for.
    let labels = template["metadata"]["labels"].as_object().expect("labels");
    let [service, budget] = ["Service", "PodDisruptionBudget"].map(|kind| &one(&all, kind)["spec"]);
    let mut selectors = vec![&service["selector"]];
    for object in [spec, &monitor["spec"], budget] {
        selectors.push(&object["selector"]["matchLabels"]);
    }
    let spread = pod["topologySpreadConstraints"].as_array().expect("a list");
    assert_eq!(spread.len(), 2, "{spread:?}");
    selectors.extend(spread.iter().map(|constraint| &constraint["labelSelector"]["matchLabels"]));
    for selector in selectors {
        let selector = selector.as_object().expect("labels");
        assert!(selector.len() == 2, "{selector:?}");
        assert!(selector.iter().all(|(name, value)| labels.get(name) == Some(value)), "{selector:?}");
    }
    let job = &labels[monitor["spec"]["jobLabel"].as_str().expect("a label")];
    assert!(text("alerts.yaml").contains(&format!("job={job}")), "{job}");
    let volumes = strings(pod["volumes"].as_array().expect("a list"), "name");
    let mounts = container["volumeMounts"].as_array().expect("a list");
    assert_eq!(strings(mounts, "name"), volumes);
    assert_eq!(strings(mounts, "mountPath"), ["/etc/tqhost", "/plugins", "/data", "/tmp"]);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], name(one(&all, "ConfigMap")));
    assert_eq!(
        pod["volumes"][1]["persistentVolumeClaim"],
        json!({ "claimName": "tqhost-plugins", "readOnly": true })
    );
    assert_eq!(pod["serviceAccountName"], name(one(&all, "ServiceAccount")));

    // It has no rights, and the user is that of the image.
    let user = format!("\nUSER {}\n", pod["securityContext"]["runAsUser"]);
    assert!(text("Dockerfile").contains(&user), "{user}");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(
        container["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        })
    );
    assert!(container["resources"]["limits"]["memory"].is_string());

    // The host answers at the port and the paths.
    let port = &container["ports"][0];
    assert!(text_of_config.contains(&format!(":{}\"", port["containerPort"])), "{port}");
    assert_eq!(service["ports"][0]["targetPort"], port["name"]);
    let bench = Bench::new("");
    let url = bench.redis.url();
    bench.configure(&at_home(&text_of_config, bench.dir.path(), &url));
    bench.install("echo", "resume-analyze");
    let host = bench.host();
    let read = |path: &str| {
        let token = format!("{} {}", authorization(monitor), SECRETS[2].1);
        http::send(host.admin(), "GET", path, &[("authorization", &token)], None).status
    };
    eventually("the host is ready", || (read("/readyz") == 200).then_some(()));
    for (probe, wanted) in
        [("livenessProbe", "/livez"), ("readinessProbe", "/readyz"), ("startupProbe", "/livez")]
    {
        let probe = &container[probe]["httpGet"];
        assert_eq!((&probe["port"], &probe["path"]), (&port["name"], &json!(wanted)), "{probe}");
        // The kubelet has no token.
        assert_eq!(host.get(wanted).status, 200, "{probe}");
    }
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["port"], port["name"]);
    let path = endpoint["path"].as_str().expect("a path");
    assert_eq!((read(path), host.get(path).status), (200, 401));
    host.stop();
}

/// How the monitor sends its token.
fn authorization(monitor: &Value) -> &str {
    monitor["spec"]["podMetricsEndpoints"][0]["authorization"]["type"].as_str().expect("a type")
}

/// A volume as the kubelet makes it of a ConfigMap: each file is a link through `..data`, which is replaced.
struct Volume {
    path: PathBuf,
    updates: usize,
}

impl Volume {
    fn new(path: PathBuf, file: &str, content: &[u8]) -> Volume {
        fs::create_dir_all(&path).expect("a folder");
        let mut volume = Volume { path, updates: 0 };
        volume.update(file, content);
        symlink(format!("..data/{file}"), volume.path.join(file)).expect("a link");
        volume
    }

    fn update(&mut self, file: &str, content: &[u8]) {
        let before = format!("..{}", self.updates);
        self.updates += 1;
        let name = format!("..{}", self.updates);
        fs::create_dir(self.path.join(&name)).expect("a folder");
        fs::write(self.path.join(&name).join(file), content).expect("a file");
        symlink(&name, self.path.join("..data_tmp")).expect("a link");
        fs::rename(self.path.join("..data_tmp"), self.path.join("..data")).expect("rename");
        let _ = fs::remove_dir_all(self.path.join(before));
    }
}

#[test]
fn an_upgrade_of_the_release_reaches_hosts_through_their_config_maps() {
    let mut bench = Bench::new("");
    let (dir, url) = (bench.dir.path().to_owned(), bench.redis.url());
    let text = |queues: &str| {
        let values = json!({
            "config": queues,
            "plugins": { "source": "configMap", "configMap": "handlers" },
        });
        let all = objects(values);
        let volume = &one(&all, "Deployment")["spec"]["template"]["spec"]["volumes"][1];
        assert_eq!(volume["configMap"]["name"], "handlers");
        at_home(&config(&all), &dir, &url).into_bytes()
    };
    let (old, new) = (files::guest("echo"), files::version("echo", 7));
    let mut plugins = Volume::new(dir.join("plugins"), "echo.wasm", &old);
    let mut configs =
        Volume::new(dir.join("config"), "tqhost.toml", &text("[queues.a]\nplugin = \"echo\"\n"));
    let host = Host::start(&dir.join("config/tqhost.toml"), "info");
    loaded(&host, &old);

    configs.update("tqhost.toml", &text("[queues.a]\nplugin = \"echo\"\n[queues.b]\nplugin = \"echo\"\n"));
    host.log("the configuration was read again");
    let id = bench.xadd("b", &[("a", "1")]);
    bench.until("b", &id, "COMPLETED");
    plugins.update("echo.wasm", &new);
    loaded(&host, &new);
    let log = host.stop_for_log();
    assert_eq!(log.logged("take effect at the next start"), Vec::<Value>::new());
}

#[test]
fn init_containers_copy_the_plugins_of_their_image() {
    let image = json!({ "reference": "handlers:1", "path": "opt/handlers" });
    let all = objects(json!({ "plugins": { "source": "initContainer", "image": image } }));
    let pod = &one(&all, "Deployment")["spec"]["template"]["spec"];
    let init = &pod["initContainers"][0];
    assert_eq!(init["securityContext"], pod["containers"][0]["securityContext"]);
    let mount = &init["volumeMounts"][0];
    assert_eq!(mount["name"], pod["volumes"][1]["name"]);
    let dir = tempfile::tempdir().expect("a folder");
    let [from, to] = ["opt/handlers", "copy"].map(|name| dir.path().join(name));
    for folder in [&from, &to] {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::write(from.join("echo.wasm"), "a handler").expect("a file");
    let words =
        init["command"].as_array().expect("a command").iter().map(|word| word.as_str().expect("a word"));
    let words: Vec<String> = words
        .map(|word| match word.starts_with('/') {
            true => format!("{}{word}", dir.path().display()),
            false => word.to_owned(),
        })
        .collect();
    assert!(words.last().expect("a word").ends_with(mount["mountPath"].as_str().expect("a path")));
    assert!(Command::new(&words[0]).args(&words[1..]).status().expect("run it").success());
    assert_eq!(fs::read_to_string(to.join("echo.wasm")).expect("a copy"), "a handler");
}

#[test]
fn prometheus_tells_the_scaler_the_backlog_of_this_release() {
    let all = objects(json!({
        "autoscaling": { "enabled": true, "prometheusAddress": "http://prometheus:9090", "targetTasks": 50 },
    }));
    let trigger = &one(&all, "ScaledObject")["spec"]["triggers"][0]["metadata"];
    assert_eq!((&trigger["threshold"], &trigger["ignoreNullValues"]), (&json!("50"), &json!("false")));
    let series = |namespace: &str, pod: &str, queue: &str, state: &str, value: u32| {
        let labels = format!("job=\"tqhost\",namespace=\"{namespace}\",pod=\"{pod}\"");
        let labels = format!("{labels},queue=\"{queue}\",state=\"{state}\"");
        json!({ "series": format!("tqhost_queue_tasks{{{labels}}}"), "values": value.to_string() })
    };
    let test = json!({
        "tests": [{
            "input_series": [
                // Two hosts tell the same.
                series("production", "tqhost-6f4c-a", "mail", "queued", 30),
                series("production", "tqhost-6f4c-b", "mail", "queued", 30),
                series("production", "tqhost-6f4c-a", "mail", "running", 5),
                series("production", "tqhost-6f4c-a", "report", "queued", 7),
                // These tasks need no host.
                series("production", "tqhost-6f4c-a", "mail", "dead", 100),
                series("production", "tqhost-6f4c-a", "mail", "delayed", 1000),
                // Another release, and another namespace.
                series("production", "tqhost-next-6f4c-a", "mail", "queued", 10_000),
                series("staging", "tqhost-6f4c-a", "mail", "queued", 100_000),
            ],
            "promql_expr_test": [{
                "expr": trigger["query"],
                "eval_time": "0m",
                "exp_samples": [{ "labels": "{}", "value": 42 }],
            }],
        }],
    });
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("test.yaml"), test.to_string()).expect("write");
    let output = program("promtool").args(["test", "rules", "test.yaml"]).current_dir(dir.path()).output();
    let output = output.expect("run promtool");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
