# frozen_string_literal: true

module EventMachine
  # Protocols, which handlers include or derive from.
  module Protocols
    autoload :TcpConnectTester, 'em/protocols/tcptest'
    autoload :HttpClient, 'em/protocols/httpclient'
    autoload :HttpClient2, 'em/protocols/httpclient2'
    autoload :LineAndTextProtocol, 'em/protocols/line_and_text'
    autoload :HeaderAndContentProtocol, 'em/protocols/header_and_content'
    autoload :LineText2, 'em/protocols/linetext2'
    autoload :LineProtocol, 'em/protocols/line_protocol'
    autoload :Stomp, 'em/protocols/stomp'
    autoload :SmtpClient, 'em/protocols/smtpclient'
    autoload :SmtpServer, 'em/protocols/smtpserver'
    autoload :SASLauth, 'em/protocols/saslauth'
    autoload :SASLauthclient, 'em/protocols/saslauth'
    autoload :Memcache, 'em/protocols/memcache'
    autoload :Socks4, 'em/protocols/socks4'
    autoload :Postgres3, 'em/protocols/postgres3'
    autoload :ObjectProtocol, 'em/protocols/object_protocol'
  end

  # The resolver.
  module DNS
    autoload :Resolver, 'em/resolver'
    autoload :Request, 'em/resolver'
    autoload :Socket, 'em/resolver'
  end
end
