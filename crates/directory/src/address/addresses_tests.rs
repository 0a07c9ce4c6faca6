//! The order in which the addresses of an agent are dialled.

use super::*;

#[test]
fn the_address_that_worked_comes_first_while_the_name_has_it() {
    let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
    let at = |last: u8| SocketAddr::new(ip(last), 80);
    let decision = AddressDecision::new(&WorkspaceId::parse("target").unwrap());
    let order = |of_name: &[u8]| -> Vec<SocketAddr> {
        let of_name: Vec<IpAddr> = of_name.iter().map(|last| ip(*last)).collect();
        AgentAddress::new(at(1), &of_name, &decision)
            .in_order()
            .collect()
    };
    assert_eq!(order(&[2, 1, 3]), [at(1), at(2), at(3)]);
    AgentAddress::new(at(1), &[ip(1), ip(3)], &decision).note_connected(at(3));
    assert_eq!(order(&[1, 2, 3]), [at(3), at(1), at(2)]);
    assert_eq!(order(&[1, 2]), [at(1), at(2)], "it has left the name");
    assert_eq!(order(&[1]), [at(1)]);
    assert_eq!(order(&[1, 2, 4, 5, 6]).len(), DIALLED_MAX);
}
